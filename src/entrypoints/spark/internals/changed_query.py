"""Change the query of changed rows before Spark plans it.

Spark's query has whole rows, although a statement may assign few columns. Its top is a projection (UPDATE) or the rows
of a MERGE, below conditions of constraints. A column is unchanged if every kind of update keeps its stored value and
no such condition reads it. NULL takes its place, or nothing if all rows are updates. Spark's own rule then removes the
column from the query, and a new scan reads what is left. (Spark converts NULLs of lists in quadratic time.)

A MERGE that may insert is an outer join, for which Spark cannot broadcast the source. Rows of the table without a
source row are dropped before it by a semi join, for which Spark can. The source is then evaluated twice, so it must
have the same rows each time.

The class has the methods of `row_level.Query`.
"""

QUERY = """/** The query of changed rows. */
    public static class Query {
        private static final Object NONE = scala.collection.immutable.Nil$.MODULE$;
        private static final scala.Option EMPTY = scala.Option.apply(null);
        private final WriteDelta delta;
        private DataSourceV2ScanRelation target;
        LogicalPlan plan;

        Query(WriteDelta delta) {
            this.delta = delta;
            this.plan = delta.query();
            this.target = target(plan);
        }

        public java.util.List read() { return LancekeepRowLevelStrategy.read(plan); }

        public StructType schema() { return plan.schema(); }

        public boolean inserts() {
            LogicalPlan top = below(plan);
            if (top instanceof MergeRows) return !((MergeRows) top).notMatchedInstructions().isEmpty();
            return !(top instanceof Project);
        }

        public boolean joins() { return joins(plan); }

        private static boolean joins(LogicalPlan plan) {
            if (plan instanceof DataSourceV2ScanRelation) return false;
            boolean simple = plan instanceof Project || plan instanceof Filter;
            return !simple || joins((LogicalPlan) plan.children().apply(0));
        }

        public java.util.List unchanged() {
            java.util.List found = new java.util.ArrayList();
            java.util.List rows = updates();
            if (target == null || rows.isEmpty() || delta.projections().rowProjection().isEmpty()) return found;
            ProjectingInternalRow row = (ProjectingInternalRow) delta.projections().rowProjection().get();
            for (int column = 0; column < row.colOrdinals().size(); column++) {
                int at = ((Integer) row.colOrdinals().apply(column)).intValue();
                String name = row.schema().fields()[column].name();
                boolean same = !isRead((Attribute) plan.output().apply(at));
                for (int one = 0; one < rows.size(); one++) same = same && isStored((Seq) rows.get(one), at, name);
                if (same) found.add(Integer.valueOf(at));
            }
            return found;
        }

        /** Return the values of updated rows, a list for each kind; none if the plan has another form. */
        private java.util.List updates() {
            java.util.List found = new java.util.ArrayList();
            LogicalPlan top = below(plan);
            if (top instanceof Project) found.add(((Project) top).projectList());
            if (!(top instanceof MergeRows)) return found;
            Seq instructions = ((MergeRows) top).instructions();
            for (int at = 0; at < instructions.size(); at++) {
                if (instructions.apply(at) instanceof MergeRows.Discard) continue;
                if (!(instructions.apply(at) instanceof MergeRows.Keep)) return new java.util.ArrayList();
                MergeRows.Keep keep = (MergeRows.Keep) instructions.apply(at);
                if (keep.output().size() != plan.output().size()) return new java.util.ArrayList();
                if (isUpdate(keep)) found.add(keep.output());
            }
            return found;
        }

        private static boolean isUpdate(MergeRows.Keep keep) {
            Integer update = Integer.valueOf(org.apache.spark.sql.catalyst.util.RowDeltaUtils.UPDATE_OPERATION());
            Object kind = keep.output().apply(0);
            return kind instanceof Literal && update.equals(((Literal) kind).value());
        }

        private static LogicalPlan below(LogicalPlan plan) {
            return plan instanceof Filter ? below(((Filter) plan).child()) : plan;
        }

        private boolean isRead(Attribute output) {
            for (LogicalPlan at = plan; at instanceof Filter; at = ((Filter) at).child())
                if (at.references().contains(output)) return true;
            return false;
        }

        private boolean isStored(Seq values, int at, String name) {
            Object value = values.apply(at);
            if (value instanceof Alias) value = ((Alias) value).child();
            if (!(value instanceof AttributeReference)) return false;
            AttributeReference found = (AttributeReference) value;
            return found.name().equals(name) && target.outputSet().contains(found);
        }

        public StructType without(java.util.List columns, boolean drop) {
            plan = nulls(plan, columns);
            if (drop) {
                java.util.List kept = new java.util.ArrayList();
                for (int at = 0; at < plan.output().size(); at++)
                    if (!columns.contains(Integer.valueOf(at))) kept.add(plan.output().apply(at));
                plan = new Project(seq(kept), plan);
            }
            for (int pass = 0; pass < 10; pass++) {
                LogicalPlan pruned = org.apache.spark.sql.catalyst.optimizer.ColumnPruning$.MODULE$.apply(plan);
                if (pruned.fastEquals(plan)) break;
                plan = pruned;
            }
            target = target(plan);
            return org.apache.spark.sql.catalyst.types.DataTypeUtils$.MODULE$.fromAttributes(needed());
        }

        private Seq needed() {
            java.util.List kept = new java.util.ArrayList();
            for (int at = 0; at < target.output().size(); at++)
                if (needs(plan, (Attribute) target.output().apply(at))) kept.add(target.output().apply(at));
            return seq(kept);
        }

        private static boolean needs(LogicalPlan plan, Attribute column) {
            if (plan.references().contains(column)) return !(plan instanceof DataSourceV2ScanRelation);
            for (int at = 0; at < plan.children().size(); at++)
                if (needs((LogicalPlan) plan.children().apply(at), column)) return true;
            return false;
        }

        private static LogicalPlan nulls(LogicalPlan plan, java.util.List columns) {
            if (plan instanceof Filter) {
                java.util.List child = new java.util.ArrayList();
                child.add(nulls(((Filter) plan).child(), columns));
                return (LogicalPlan) plan.withNewChildren(seq(child).toIndexedSeq());
            }
            if (plan instanceof Project)
                return new Project(nulls(((Project) plan).projectList(), columns, true), ((Project) plan).child());
            MergeRows rows = (MergeRows) plan;
            java.util.List output = new java.util.ArrayList();
            for (int at = 0; at < rows.output().size(); at++) {
                Attribute column = (Attribute) rows.output().apply(at);
                output.add(columns.contains(Integer.valueOf(at)) ? column.withNullability(true) : column);
            }
            return new MergeRows(
                rows.isSourceRowPresent(), rows.isTargetRowPresent(), changed(rows.matchedInstructions(), columns),
                rows.notMatchedInstructions(), changed(rows.notMatchedBySourceInstructions(), columns),
                rows.checkCardinality(), seq(output), rows.child());
        }

        private static Seq changed(Seq instructions, java.util.List columns) {
            java.util.List found = new java.util.ArrayList();
            for (int at = 0; at < instructions.size(); at++) {
                Object one = instructions.apply(at);
                if (one instanceof MergeRows.Keep && isUpdate((MergeRows.Keep) one)) {
                    MergeRows.Keep keep = (MergeRows.Keep) one;
                    one = new MergeRows.Keep(keep.context(), keep.condition(), nulls(keep.output(), columns, false));
                }
                found.add(one);
            }
            return seq(found);
        }

        private static Seq nulls(Seq values, java.util.List columns, boolean named) {
            java.util.List found = new java.util.ArrayList();
            for (int at = 0; at < values.size(); at++) {
                Expression value = (Expression) values.apply(at);
                if (columns.contains(Integer.valueOf(at))) {
                    Expression none = Literal$.MODULE$.create((Object) null, value.dataType());
                    value = named ? named(none, ((NamedExpression) value).name()) : none;
                }
                found.add(value);
            }
            return seq(found);
        }

        private static Expression named(Expression value, String name) {
            return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), (Seq) NONE, EMPTY, (Seq) NONE);
        }

        public void scan(Scan scan) {
            plan = scanned(plan, new DataSourceV2ScanRelation(
                target.relation(), scan, needed(), EMPTY, EMPTY, (Seq) NONE, false));
        }

        private LogicalPlan scanned(LogicalPlan plan, LogicalPlan scan) {
            if (plan == target) return scan;
            java.util.List children = new java.util.ArrayList();
            for (int at = 0; at < plan.children().size(); at++)
                children.add(scanned((LogicalPlan) plan.children().apply(at), scan));
            return (LogicalPlan) plan.withNewChildren(seq(children).toIndexedSeq());
        }

        public void reduce() { plan = reduced(plan); }

        private static LogicalPlan reduced(LogicalPlan plan) {
            if (plan instanceof Join) return reduced((Join) plan);
            if (plan.children().size() != 1) return plan;
            java.util.List child = new java.util.ArrayList();
            child.add(reduced((LogicalPlan) plan.children().apply(0)));
            return (LogicalPlan) plan.withNewChildren(seq(child).toIndexedSeq());
        }

        private static LogicalPlan reduced(Join join) {
            if (join.joinType() != RightOuter$.MODULE$ || join.condition().isEmpty()) return join;
            Expression condition = (Expression) join.condition().get();
            boolean same = condition.deterministic() && !SubqueryExpression$.MODULE$.hasSubquery(condition);
            if (!same || !isEquality(condition, join) || !isRepeatable(join.right())) return join;
            java.util.List keys = new java.util.ArrayList();
            for (int at = 0; at < join.right().output().size(); at++)
                if (condition.references().contains((NamedExpression) join.right().output().apply(at)))
                    keys.add(join.right().output().apply(at));
            LogicalPlan source = new Project(seq(keys), join.right());
            scala.math.BigInt bytes = source.stats().sizeInBytes();
            long most = org.apache.spark.sql.internal.SQLConf$.MODULE$.get().autoBroadcastJoinThreshold();
            if (!bytes.isValidLong() || bytes.toLong() > most) return join;
            LogicalPlan found = new Join(join.left(), source, LeftSemi$.MODULE$, join.condition(), JoinHint.NONE());
            return new Join(found, join.right(), join.joinType(), join.condition(), join.hint());
        }

        private static boolean isEquality(Expression condition, Join join) {
            if (condition instanceof And)
                return isEquality(((And) condition).left(), join) || isEquality(((And) condition).right(), join);
            if (!(condition instanceof EqualTo)) return false;
            Expression left = ((EqualTo) condition).left();
            Expression right = ((EqualTo) condition).right();
            return isOf(left, join.left()) && isOf(right, join.right())
                || isOf(left, join.right()) && isOf(right, join.left());
        }

        private static boolean isOf(Expression key, LogicalPlan side) {
            return !key.references().isEmpty() && key.references().subsetOf(side.outputSet());
        }

        /** Return whether a plan has the same rows each time it runs. */
        private static boolean isRepeatable(LogicalPlan plan) {
            if (plan instanceof Project || plan instanceof Filter)
                return plan.deterministic() && plan.subqueries().isEmpty()
                    && isRepeatable((LogicalPlan) plan.children().apply(0));
            if (plan instanceof DataSourceV2ScanRelation) {
                Table table = ((DataSourceV2ScanRelation) plan).relation().table();
                return java.lang.reflect.Proxy.isProxyClass(table.getClass()) && table.version() != null;
            }
            return plan instanceof LocalRelation || plan instanceof Range;
        }

        public void gather(int address) {
            java.util.List fragment = new java.util.ArrayList();
            Expression bits = Literal$.MODULE$.apply(Integer.valueOf(32));
            fragment.add(new ShiftRight((Expression) plan.output().apply(address), bits));
            plan = new RepartitionByExpression(seq(fragment), plan, EMPTY, EMPTY);
        }

        public void sort(int address) {
            java.util.List order = new java.util.ArrayList();
            order.add(new SortOrder(
                (Expression) plan.output().apply(address), Ascending$.MODULE$, NullsLast$.MODULE$, (Seq) NONE));
            plan = new Sort(seq(order), false, plan, EMPTY);
        }

        /** Return the scan of the rows that the statement may change; null if there is not one. */
        private static DataSourceV2ScanRelation target(LogicalPlan plan) {
            if (plan instanceof DataSourceV2ScanRelation) {
                DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) plan;
                return scan.relation().table() instanceof RowLevelOperationTable ? scan : null;
            }
            DataSourceV2ScanRelation found = null;
            for (int at = 0; at < plan.children().size(); at++) {
                DataSourceV2ScanRelation below = target((LogicalPlan) plan.children().apply(at));
                if (below != null && found != null) return null;
                if (below != null) found = below;
            }
            return found;
        }

        private static Seq seq(java.util.List values) {
            return scala.jdk.javaapi.CollectionConverters.asScala(values).toSeq();
        }
    }
"""
