"""Plan aggregates whose partial results a scan computes.

Spark's optimizer offers few aggregates to a scan, and replaces an average by a sum, which may overflow where the
average does not. So the planner plans the aggregate by Spark's own rules, and the scan takes the place of the partial
aggregate: its columns are the buffers of that one. Spark merges them in each task, and then all of a group.

The scan is asked for the columns to group by, for the kind and the column of each aggregate, and whether it takes
decimals as their digits, which is what Spark's optimizer makes of small ones; see `sql.aggregates.Aggregation.of`.
Spark plans the aggregate if the scan declines, or has other buffers than Spark.
"""

PARTIAL_AGGREGATES = """/** An aggregate above a scan; see partial_aggregates.py. */
    public static class PartialAggregates {
        private static final Object NONE = scala.collection.immutable.Nil$.MODULE$;
        private static final scala.Option EMPTY = scala.Option.apply(null);

        /** Return the plan; null if Spark must plan it. */
        static SparkPlan plan(LogicalPlan plan) {
            scala.Option found = PhysicalAggregation$.MODULE$.unapply(plan);
            if (found.isEmpty()) return null;
            scala.Tuple4 parts = (scala.Tuple4) found.get();
            Seq groups = (Seq) parts._1();
            Seq aggregates = (Seq) parts._2();
            DataSourceV2ScanRelation rows = rows((LogicalPlan) parts._4());
            String asked = rows == null ? null : asked(groups, aggregates, rows);
            Scan scan = asked == null ? null : (Scan) ((java.util.function.Function) rows.scan()).apply(asked);
            if (scan == null) return null;
            SparkPlan whole = (SparkPlan) AggUtils$.MODULE$.planAggregateWithoutDistinct(
                groups, aggregates, (Seq) parts._3(), new PlanLater(rows)).head();
            SparkPlan partial = (SparkPlan) whole.children().head();
            if (!(partial instanceof HashAggregateExec || partial instanceof SortAggregateExec)) return null;
            if (!hasBuffers(scan, partial.output())) return null;
            LogicalPlan results = new DataSourceV2ScanRelation(
                rows.relation(), scan, partial.output(), EMPTY, EMPTY, (Seq) NONE, false);
            SparkPlan merged = merged((BaseAggregateExec) partial, new PlanLater(results));
            return (SparkPlan) whole.withNewChildren(list(merged).toIndexedSeq());
        }

        /** Return the scan of Lancekeep whose rows a plan has; null for any other plan. */
        private static DataSourceV2ScanRelation rows(LogicalPlan plan) {
            if (plan instanceof Project) {
                Seq columns = ((Project) plan).projectList();
                for (int at = 0; at < columns.size(); at++) if (!(columns.apply(at) instanceof Attribute)) return null;
                return rows(((Project) plan).child());
            }
            if (plan instanceof Filter) {
                DataSourceV2ScanRelation below = rows(((Filter) plan).child());
                return below != null && isEvaluated(((Filter) plan).condition(), below) ? below : null;
            }
            if (!(plan instanceof DataSourceV2ScanRelation)) return null;
            Scan scan = ((DataSourceV2ScanRelation) plan).scan();
            boolean own = scan instanceof java.util.function.Function
                && java.lang.reflect.Proxy.isProxyClass(scan.getClass());
            return own ? (DataSourceV2ScanRelation) plan : null;
        }

        /** Return whether the scan evaluates a condition that Spark has kept for its estimates. */
        private static boolean isEvaluated(Expression condition, DataSourceV2ScanRelation rows) {
            if (condition instanceof And)
                return isEvaluated(((And) condition).left(), rows) && isEvaluated(((And) condition).right(), rows);
            for (int at = 0; at < rows.pushedFilters().size(); at++)
                if (condition.semanticEquals((Expression) rows.pushedFilters().apply(at))) return true;
            return false;
        }

        /** Return the question to the scan; null if no scan has the answer. */
        private static String asked(Seq groups, Seq aggregates, DataSourceV2ScanRelation rows) {
            java.util.List names = new java.util.ArrayList();
            for (int at = 0; at < groups.size(); at++) {
                if (!isColumn(groups.apply(at), rows)) return null;
                names.add(((Attribute) groups.apply(at)).name());
            }
            java.util.List figures = new java.util.ArrayList();
            for (int at = 0; at < aggregates.size(); at++) {
                AggregateExpression one = (AggregateExpression) aggregates.apply(at);
                String kind = kind(one.aggregateFunction());
                Seq read = one.aggregateFunction().children();
                if (kind == null || one.isDistinct() || one.filter().isDefined() || read.size() != 1) return null;
                boolean unscaled = read.head() instanceof UnscaledValue;
                Object value = unscaled ? ((UnscaledValue) read.head()).child() : read.head();
                boolean counted = kind.equals("count") && value instanceof Literal && ((Literal) value).value() != null;
                if (!counted && !isColumn(value, rows)) return null;
                figures.add(java.util.Arrays.asList(
                    new Object[] {kind, counted ? null : ((Attribute) value).name(), Boolean.valueOf(unscaled)}));
            }
            try {
                return new com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(
                    java.util.Arrays.asList(new Object[] {names, figures}));
            } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
                throw new IllegalStateException(error);
            }
        }

        private static boolean isColumn(Object value, DataSourceV2ScanRelation rows) {
            return value instanceof AttributeReference && rows.outputSet().contains((AttributeReference) value);
        }

        private static String kind(AggregateFunction function) {
            if (function instanceof Count) return "count";
            if (function instanceof Sum) return "sum";
            if (function instanceof Average) return "avg";
            if (function instanceof Min) return "min";
            return function instanceof Max ? "max" : null;
        }

        private static boolean hasBuffers(Scan scan, Seq buffers) {
            StructType schema = scan.readSchema();
            if (schema.size() != buffers.size()) return false;
            for (int at = 0; at < buffers.size(); at++)
                if (!schema.fields()[at].dataType().equals(((Attribute) buffers.apply(at)).dataType())) return false;
            return true;
        }

        /** Return the aggregate that merges buffers in each task, before their exchange. */
        private static SparkPlan merged(BaseAggregateExec partial, SparkPlan child) {
            java.util.List groups = new java.util.ArrayList();
            for (int at = 0; at < partial.groupingExpressions().size(); at++)
                groups.add(((NamedExpression) partial.groupingExpressions().apply(at)).toAttribute());
            java.util.List aggregates = new java.util.ArrayList();
            java.util.List attributes = new java.util.ArrayList();
            for (int at = 0; at < partial.aggregateExpressions().size(); at++) {
                AggregateExpression one = (AggregateExpression) partial.aggregateExpressions().apply(at);
                aggregates.add(new AggregateExpression(
                    one.aggregateFunction(), PartialMerge$.MODULE$, false, EMPTY, one.resultId()));
                attributes.add(one.resultAttribute());
            }
            if (partial instanceof HashAggregateExec)
                return new HashAggregateExec(
                    EMPTY, false, EMPTY, seq(groups), seq(aggregates), seq(attributes), groups.size(),
                    partial.resultExpressions(), child);
            return new SortAggregateExec(
                EMPTY, false, EMPTY, seq(groups), seq(aggregates), seq(attributes), groups.size(),
                partial.resultExpressions(), child);
        }

        private static Seq list(Object value) {
            return seq(java.util.Arrays.asList(new Object[] {value}));
        }

        private static Seq seq(java.util.List values) {
            return scala.jdk.javaapi.CollectionConverters.asScala(values).toSeq();
        }
    }
"""
