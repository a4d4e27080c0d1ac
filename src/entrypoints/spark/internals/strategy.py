"""Let Spark's planner write changed rows through Python.

Spark rewrites UPDATE, DELETE and MERGE to a ``WriteDelta``: a query of changed rows with the operation and the old
address of each. Its own physical plan passes single rows to the writer, and silently drops them if the writer is
Python's. A planner strategy, compiled with Spark's own compiler, plans the same query as an append, which passes whole
partitions. A MERGE that only inserts is an append for Spark; its write learns that the query reads the target.

Before the query is planned, `changed_query` can leave out columns and arrange the rows.

Spark has no plan for a dynamic overwrite that takes a DataFrame. The strategy plans it as Spark plans other overwrites
of this kind. It also plans aggregates whose partial results a scan computes (`partial_aggregates`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.changed_query import QUERY
from lancekeep.entrypoints.spark.internals.compiler import instance
from lancekeep.entrypoints.spark.internals.driver import Driver
from lancekeep.entrypoints.spark.internals.partial_aggregates import PARTIAL_AGGREGATES
from lancekeep.entrypoints.spark.internals.sessions import planner

_CLASS = "LancekeepRowLevelStrategy"

_SOURCE = """
import org.apache.spark.sql.catalyst.ProjectingInternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.catalyst.planning.PhysicalAggregation$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.aggregate.*;
import org.apache.spark.sql.execution.datasources.v2.*;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

public class LancekeepRowLevelStrategy extends org.apache.spark.sql.execution.SparkStrategy {
    public scala.collection.immutable.Seq apply(LogicalPlan plan) {
        Object found = plan instanceof Aggregate ? PartialAggregates.plan(plan) : null;
        if (plan instanceof InsertOnlyMerge && ((InsertOnlyMerge) plan).write().isDefined()) {
            Object write = ((InsertOnlyMerge) plan).write().get();
            if (write instanceof java.util.function.Consumer) ((java.util.function.Consumer) write).accept(
                read(((InsertOnlyMerge) plan).query()));
        }
        if (plan instanceof OverwritePartitionsDynamic && ((OverwritePartitionsDynamic) plan).write().isDefined()) {
            OverwritePartitionsDynamic dynamic = (OverwritePartitionsDynamic) plan;
            Object write = dynamic.write().get();
            if (write instanceof V1Write && java.lang.reflect.Proxy.isProxyClass(write.getClass())) {  // Lancekeep's
                DataSourceV2Relation table = (DataSourceV2Relation) ((V2WriteCommand) plan).table();
                found = new OverwriteByExpressionExecV1(
                    (SupportsWrite) table.table(), dynamic.query(), new Refresh(table), (V1Write) write);
            }
        }
        if (plan instanceof WriteDelta && ((WriteDelta) plan).write().isDefined()) {
            WriteDelta delta = (WriteDelta) plan;
            Object write = delta.write().get();
            if (write instanceof java.util.function.BiFunction) {  // Lancekeep's; other catalogs keep their plan
                DataSourceV2Relation table = (DataSourceV2Relation) delta.originalTable();
                Query query = new Query(delta);
                Write append = (Write) ((java.util.function.BiFunction) write).apply(delta, query);
                found = new AppendDataExec(
                    new PlanLater(query.plan), new Refresh(table), append, table.name(), scala.Option.apply(null));
            }
        }
        return scala.Option.apply(found).toList();
    }

    /** Return the tables that a query reads, without the rows that it changes. */
    static java.util.List read(LogicalPlan query) {
        java.util.List found = new java.util.ArrayList();
        collect(query, found);
        return found;
    }

    private static void collect(LogicalPlan plan, java.util.List found) {
        if (plan instanceof DataSourceV2ScanRelation) {
            Table table = ((DataSourceV2ScanRelation) plan).relation().table();
            if (!(table instanceof RowLevelOperationTable)) found.add(table);
        }
        for (int at = 0; at < plan.children().size(); at++) collect((LogicalPlan) plan.children().apply(at), found);
        for (int at = 0; at < plan.subqueries().size(); at++) collect((LogicalPlan) plan.subqueries().apply(at), found);
    }

    @QUERY@

    @PARTIAL_AGGREGATES@

    /** Read again what is cached of the table, as Spark does after each write. */
    public static class Refresh extends scala.runtime.AbstractFunction0 {
        private final DataSourceV2Relation table;
        public Refresh(DataSourceV2Relation table) { this.table = table; }
        public Object apply() {
            SparkSession session = (SparkSession) SparkSession.active();
            Identifier identifier = (Identifier) table.identifier().get();
            java.util.ArrayList names = new java.util.ArrayList();
            names.add(((CatalogPlugin) table.catalog().get()).name());
            names.addAll(java.util.Arrays.asList((Object[]) identifier.namespace()));
            names.add(identifier.name());
            session.sharedState().cacheManager().recacheTableOrView(
                session, scala.jdk.javaapi.CollectionConverters.asScala((java.util.List) names).toSeq(), false);
            return scala.runtime.BoxedUnit.UNIT;
        }
    }
}
"""


def install_strategy(driver: Driver) -> None:
    """Add the strategy to a session, once; clones of the session have it too."""
    methods = planner(driver.spark)
    found = methods.extraStrategies()
    present = [found.apply(at) for at in range(found.size())]
    if all(each.getClass().getName() != _CLASS for each in present):
        source = _SOURCE.replace("@QUERY@", QUERY).replace("@PARTIAL_AGGREGATES@", PARTIAL_AGGREGATES)
        strategy = instance(driver, source, _CLASS)
        getattr(methods, "extraStrategies_$eq")(driver.seq([*present, strategy]))


class RowDelta(NamedTuple):
    """What Spark knows about the changed rows of a ``WriteDelta``.

    Attributes:
        operations: The numbers of a deleted, an updated and an inserted row.
        columns: The positions of the table's columns; none for a DELETE.
        identity: The positions of the columns that identify the old row; the address is the last.
    """

    operations: tuple[int, int, int]
    columns: tuple[int, ...]
    identity: tuple[int, ...]


def row_delta(driver: Driver, delta: Any) -> RowDelta:
    """Read a ``WriteDelta``."""
    numbers = driver.java(classes.ROW_OPERATIONS)
    row = delta.projections().rowProjection()
    return RowDelta(
        (numbers.DELETE_OPERATION(), numbers.UPDATE_OPERATION(), numbers.INSERT_OPERATION()),
        tuple(_ordinals(row.get())) if row.isDefined() else (),
        tuple(_ordinals(delta.projections().rowIdProjection())),
    )


def _ordinals(projection: Any) -> list[int]:
    found = projection.colOrdinals()
    return [found.apply(at) for at in range(found.size())]
