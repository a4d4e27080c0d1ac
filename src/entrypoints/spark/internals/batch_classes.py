"""Hold the Java source of the readers and writers of batches (`columnar`)."""

from __future__ import annotations

SOURCE = """
package @PACKAGE@;

import java.nio.ByteOrder;
import net.razorvine.pickle.Unpickler;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.spark.ContextAwareIterator;
import org.apache.spark.JobArtifactSet$;
import org.apache.spark.JobArtifactState;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.TimestampNanosVal;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.CollectionAccumulator;

public class Readers implements PartitionReaderFactory {
    private static final String RUNNER = MapInBatchEvaluatorFactory.class.getName() + "$MapInBatchEvaluator$$anon$1";
    private static final String LIMIT =
        "org$apache$spark$sql$execution$python$BasicPythonArrowInput$_setter_$maxBytesPerBatch_$eq";

    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType schema;
    private final boolean columnar;
    private final scala.Option artifacts;
    private final scala.Option session;

    Readers(UserDefinedPythonDataSource source, byte[] function, StructType schema, boolean columnar,
            scala.Option artifacts, scala.Option session) {
        this.source = source;
        this.function = function;
        this.schema = schema;
        this.columnar = columnar;
        this.artifacts = artifacts;
        this.session = session;
    }

    public boolean supportColumnarReads(InputPartition partition) { return columnar; }

    public PartitionReader createReader(InputPartition partition) {
        return new RowReader(
            new PythonPartitionReaderFactory(source, function, schema, artifacts, session).createReader(partition),
            source);
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new Reader(this, (PythonInputPartition) partition);
    }

    /** The only constructor of the class that runs Spark's worker for a source. */
    static java.lang.reflect.Constructor runner() {
        try {
            java.lang.reflect.Constructor[] found = Class.forName(
                RUNNER, true, MapInBatchEvaluatorFactory.class.getClassLoader()).getConstructors();
            if (found.length == 1 && found[0].getParameterCount() == 2
                && found[0].getParameterTypes()[1] == int[][].class) return found[0];
            throw new IllegalStateException(RUNNER + " has other constructors");
        } catch (ClassNotFoundException error) {
            throw new IllegalStateException(error);
        }
    }

    /** What sets after how many bytes a runner ends a batch. */
    static java.lang.reflect.Method limit() {
        try {
            return ArrowPythonRunner.class.getMethod(LIMIT, new Class[] {long.class});
        } catch (NoSuchMethodException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Return a runner of Spark's worker. */
    static ArrowPythonRunner runner(
            UserDefinedPythonDataSource source, byte[] function, String name, StructType input, StructType output,
            scala.Option artifacts, scala.Option session) {
        Object evaluator = source.createMapInBatchEvaluatorFactory(
            function, name, input, output, PythonCustomMetric$.MODULE$.pythonMetrics(), artifacts, session
        ).createEvaluator();
        try {
            return (ArrowPythonRunner) runner().newInstance(new Object[] {evaluator, new int[][] {{0}}});
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A number of a task. */
    public static final class Number implements CustomTaskMetric {
        private final String name;
        private final long value;

        Number(String name, long value) {
            this.name = name;
            this.value = value;
        }

        public String name() { return name; }
        public long value() { return value; }

        /**
         * Return what the worker of this task has reported, which it does at its end.
         *
         * Workers send accumulators as pickled pairs of a number and a value. Each task has its own copy of the
         * collection that holds them.
         */
        static CustomTaskMetric[] of(UserDefinedPythonDataSource source) {
            CollectionAccumulator reports = source.dataSourceCls().accumulator();
            java.util.List found = new java.util.ArrayList();
            java.util.List all = reports == null ? found : reports.value();
            try {
                for (int at = 0; at < all.size(); at++) {
                    Object[] report = (Object[]) new Unpickler().loads((byte[]) all.get(at));
                    if (!report[0].equals(Integer.valueOf(@NUMBERS@))) continue;
                    java.util.Iterator each = ((java.util.Map) report[1]).entrySet().iterator();
                    while (each.hasNext()) {
                        java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
                        long value = ((java.lang.Number) entry.getValue()).longValue();
                        found.add(new Number((String) entry.getKey(), value));
                    }
                }
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
            return (CustomTaskMetric[]) found.toArray(new CustomTaskMetric[found.size()]);
        }
    }

    /** Reads one partition as rows, by Spark's reader. */
    public static final class RowReader implements PartitionReader {
        private final PartitionReader rows;
        private final UserDefinedPythonDataSource source;

        RowReader(PartitionReader rows, UserDefinedPythonDataSource source) {
            this.rows = rows;
            this.source = source;
        }

        public boolean next() throws java.io.IOException { return rows.next(); }
        public Object get() { return rows.get(); }
        public void close() throws java.io.IOException { rows.close(); }
        public CustomTaskMetric[] currentMetricsValues() { return Number.of(source); }
    }

    /** Reads one partition. A batch is valid until the next one is read, as in Spark's own formats. */
    public static final class Reader implements PartitionReader {
        private final scala.collection.Iterator batches;
        private final StructField[] fields;
        private final UserDefinedPythonDataSource source;

        Reader(Readers readers, PythonInputPartition partition) {
            fields = readers.schema.fields();
            source = readers.source;
            ArrowPythonRunner runner = runner(
                readers.source, readers.function, "read_from_data_source",
                UserDefinedPythonDataSource.readInputSchema(), readers.schema, readers.artifacts, readers.session);
            GenericInternalRow value = new GenericInternalRow(new Object[] {partition.pickedPartition()});
            TaskContext context = TaskContext.get();
            batches = runner.compute(
                only(only(new GenericInternalRow(new Object[] {value}))), context.partitionId(), context);
        }

        static scala.collection.Iterator only(Object value) {
            return scala.collection.Iterator$.MODULE$.single(value);
        }

        public boolean next() { return batches.hasNext(); }

        public Object get() {
            ColumnarBatch batch = (ColumnarBatch) batches.next();
            ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
            ColumnVector[] columns = new ColumnVector[fields.length];
            for (int at = 0; at < columns.length; at++)
                columns[at] = Column.of(rows.getChild(at), fields[at].dataType(), batch.numRows());
            return new ColumnarBatch(columns, batch.numRows());
        }

        public CustomTaskMetric[] currentMetricsValues() { return Number.of(source); }

        /** The end of the task ends the worker's work and releases its memory. */
        public void close() { }
    }

    public static final class Writers implements DataWriterFactory {
        private final UserDefinedPythonDataSource source;
        private final byte[] function;
        private final StructType schema;
        private final scala.Option artifacts;

        Writers(UserDefinedPythonDataSource source, byte[] function, StructType schema, scala.Option artifacts) {
            this.source = source;
            this.function = function;
            this.schema = schema;
            this.artifacts = artifacts;
        }

        public DataWriter createWriter(int partition, long task) { return new Writer(this); }
    }

    /** Writes the rows of one task. */
    public static final class Writer implements DataWriter {
        private final Writers writers;
        private WriterCommitMessage message;

        Writer(Writers writers) { this.writers = writers; }

        public void writeAll(java.util.Iterator rows) {
            ArrowPythonRunner runner = runner(
                writers.source, writers.function, "write_to_data_source", writers.schema,
                UserDefinedPythonDataSource.writeOutputSchema(), writers.artifacts, scala.Option.apply(null));
            long most = runner.maxBytesPerBatch();
            try {
                limit().invoke(runner, new Object[] {Long.valueOf(Integer.MAX_VALUE)});  // Spark measures nothing
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
            TaskContext context = TaskContext.get();
            try {
                read(runner.compute(
                    new Batches(rows, most, writers.schema.defaultSize(), context), context.partitionId(), context));
            } finally {
                release(runner);
            }
        }

        /** Release the memory of the last batch. Spark keeps it unless the worker has taken all rows. */
        private static void release(ArrowPythonRunner runner) {
            try {
                runner.root().close();
                runner.allocator().close();
            } catch (IllegalStateException error) {
                // Something else still holds a buffer. The task has its own outcome.
            }
        }

        private void read(scala.collection.Iterator answers) {
            while (answers.hasNext()) {
                ColumnarBatch answer = (ColumnarBatch) answers.next();
                ColumnVector messages = ((ArrowColumnVector) answer.column(0)).getChild(0);
                for (int row = 0; row < answer.numRows(); row++) {
                    if (message != null) throw new IllegalStateException("the worker sent more than one message");
                    message = new PythonWriterCommitMessage(messages.getBinary(row));
                }
            }
            if (message == null) throw new IllegalStateException("the worker sent no message");
        }

        public void write(Object row) { throw new UnsupportedOperationException("Spark writes all rows at once"); }
        public WriterCommitMessage commit() { return message; }
        public void abort() { }
        public void close() { }
    }

    /** The rows of a task, in iterators that end after a number of bytes. The runner limits the number of rows. */
    public static final class Batches extends scala.collection.AbstractIterator {
        final scala.collection.Iterator rows;
        final long most;
        final int usual;

        Batches(java.util.Iterator rows, long most, int usual, TaskContext context) {
            this.rows = new ContextAwareIterator(context, scala.jdk.javaapi.CollectionConverters.asScala(rows));
            this.most = most;
            this.usual = usual;
        }

        public boolean hasNext() { return rows.hasNext(); }
        public Object next() { return new Batch(this); }
    }

    public static final class Batch extends scala.collection.AbstractIterator {
        private final Batches batches;
        private long bytes = 0L;

        Batch(Batches batches) { this.batches = batches; }

        public boolean hasNext() { return bytes < batches.most && batches.rows.hasNext(); }

        public Object next() {
            Object row = batches.rows.next();
            bytes += row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : batches.usual;
            return new GenericInternalRow(new Object[] {row});
        }
    }

    /** A column of a batch. The stream of the worker owns its memory, so that closing a column releases nothing. */
    public static class Column extends ColumnVector {
        protected final ArrowColumnVector arrow;

        Column(ArrowColumnVector arrow) {
            super(arrow.dataType());
            this.arrow = arrow;
        }

        static Column of(ArrowColumnVector arrow, DataType expected, int rows) {
            boolean plain = arrow.dataType().equals(expected) && ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN;
            return plain && Flat.fits((FieldVector) arrow.getValueVector(), expected, rows) ? new Flat(arrow)
                : new Column(arrow);
        }

        public void close() { }
        public void closeIfFreeable() { }
        public boolean hasNull() { return arrow.hasNull(); }
        public int numNulls() { return arrow.numNulls(); }
        public boolean isNullAt(int row) { return arrow.isNullAt(row); }
        public boolean getBoolean(int row) { return arrow.getBoolean(row); }
        public byte getByte(int row) { return arrow.getByte(row); }
        public short getShort(int row) { return arrow.getShort(row); }
        public int getInt(int row) { return arrow.getInt(row); }
        public long getLong(int row) { return arrow.getLong(row); }
        public float getFloat(int row) { return arrow.getFloat(row); }
        public double getDouble(int row) { return arrow.getDouble(row); }
        public Decimal getDecimal(int row, int precision, int scale) { return arrow.getDecimal(row, precision, scale); }
        public UTF8String getUTF8String(int row) { return arrow.getUTF8String(row); }
        public byte[] getBinary(int row) { return arrow.getBinary(row); }
        public BinaryView getBinaryView(int row) { return arrow.getBinaryView(row); }
        public CalendarInterval getInterval(int row) { return arrow.getInterval(row); }
        public TimestampNanosVal getTimestampNTZNanos(int row) { return arrow.getTimestampNTZNanos(row); }
        public TimestampNanosVal getTimestampLTZNanos(int row) { return arrow.getTimestampLTZNanos(row); }
        public ColumnarArray getArray(int row) { return arrow.getArray(row); }
        public ColumnarMap getMap(int row) { return arrow.getMap(row); }
        public ColumnVector getChild(int at) { return arrow.getChild(at); }
    }

    /** A column of plain values, which are read from memory without Arrow's checks of each access. */
    public static final class Flat extends Column {
        private final long values;
        private final long offsets;
        private final long validity;
        private final boolean nullable;

        Flat(ArrowColumnVector arrow) {
            super(arrow);
            FieldVector vector = (FieldVector) arrow.getValueVector();
            values = vector.getDataBuffer().memoryAddress();
            offsets = vector instanceof BaseVariableWidthVector ? vector.getOffsetBuffer().memoryAddress() : 0L;
            validity = vector.getValidityBuffer().memoryAddress();
            nullable = arrow.hasNull();
        }

        /** Whether the getters below read the vector's layout, and its buffers hold all rows. */
        static boolean fits(FieldVector vector, DataType type, int rows) {
            if (vector.getValidityBuffer().capacity() < (rows + 7L) / 8L) return false;
            if (vector instanceof VarCharVector)
                return rows > 0 && vector.getOffsetBuffer().capacity() >= 4L * (rows + 1L);
            long bits = vector instanceof BitVector ? 1L
                : vector instanceof TinyIntVector ? 8L
                : vector instanceof SmallIntVector ? 16L
                : vector instanceof IntVector || vector instanceof DateDayVector || vector instanceof Float4Vector ? 32L
                : vector instanceof BigIntVector || vector instanceof Float8Vector
                    || vector instanceof TimeStampMicroVector || vector instanceof TimeStampMicroTZVector ? 64L
                : vector instanceof DecimalVector && ((DecimalType) type).precision() <= Decimal.MAX_LONG_DIGITS()
                    ? 128L
                : 0L;
            return bits > 0L && vector.getDataBuffer().capacity() >= (bits * rows + 7L) / 8L;
        }

        public boolean isNullAt(int row) {
            return nullable && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
        }
        public boolean getBoolean(int row) {
            return (Platform.getByte(null, values + (row >> 3)) >> (row & 7) & 1) != 0;
        }
        public byte getByte(int row) { return Platform.getByte(null, values + row); }
        public short getShort(int row) { return Platform.getShort(null, values + 2L * row); }
        public int getInt(int row) { return Platform.getInt(null, values + 4L * row); }
        public long getLong(int row) { return Platform.getLong(null, values + 8L * row); }
        public float getFloat(int row) { return Platform.getFloat(null, values + 4L * row); }
        public double getDouble(int row) { return Platform.getDouble(null, values + 8L * row); }
        public Decimal getDecimal(int row, int precision, int scale) {
            if (isNullAt(row)) return null;
            return Decimal.createUnsafe(Platform.getLong(null, values + 16L * row), precision, scale);
        }
        public UTF8String getUTF8String(int row) {
            if (isNullAt(row)) return null;
            int start = Platform.getInt(null, offsets + 4L * row);
            return UTF8String.fromAddress(null, values + start, Platform.getInt(null, offsets + 4L * row + 4L) - start);
        }
    }

    /** The part that stays in the driver. */
    public static final class Door {
        private final java.io.File jar;

        /** Write the jar, which is removed when the JVM ends. */
        public Door(java.util.Map codes) throws java.io.IOException {
            runner();
            limit();
            java.io.File folder = org.apache.spark.util.Utils.createTempDir(
                System.getProperty("java.io.tmpdir"), "lancekeep");
            jar = new java.io.File(folder, "lancekeep-batches-@DIGEST@.jar");
            java.util.zip.ZipOutputStream zip = new java.util.zip.ZipOutputStream(new java.io.FileOutputStream(jar));
            try {
                for (java.util.Iterator each = codes.entrySet().iterator(); each.hasNext(); ) {
                    java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
                    String path = ((String) entry.getKey()).replace('.', '/') + ".class";
                    zip.putNextEntry(new java.util.zip.ZipEntry(path));
                    zip.write((byte[]) entry.getValue());
                    zip.closeEntry();
                }
            } finally {
                zip.close();
            }
        }

        /** Return the readers, whose class each executor can load before it has a task. */
        public PartitionReaderFactory readers(
                SparkSession session, UserDefinedPythonDataSource source, byte[] function, StructType schema,
                boolean columnar, scala.Option artifacts) {
            distribute(session);
            return new Readers(source, function, schema, columnar, artifacts, scala.Option.apply(null));
        }

        /** Return the writers, whose class each executor can load before it has a task. */
        public DataWriterFactory writers(
                SparkSession session, UserDefinedPythonDataSource source, byte[] function, StructType schema,
                scala.Option artifacts) {
            distribute(session);
            return new Writers(source, function, schema, artifacts);
        }

        /**
         * Add the jar to the artifacts of the active session, which runs the statement; it may be a clone of the
         * given one. Jobs without a session get the jars of all sessions.
         */
        public synchronized void distribute(SparkSession session) {
            scala.Option active = SparkSession.getActiveSession();
            SparkSession running = active.isDefined() ? (SparkSession) active.get() : session;
            JobArtifactState state = new JobArtifactState(running.sessionUUID(), scala.Option.apply(null));
            final SparkContext context = running.sparkContext();
            scala.Option present = context.addedJars().get(state.uuid());
            if (present.isDefined()) {
                scala.collection.Iterator each = ((scala.collection.Map) present.get()).keysIterator();
                while (each.hasNext()) if (((String) each.next()).endsWith("/" + jar.getName())) return;
            }
            JobArtifactSet$.MODULE$.withActiveJobArtifactState(state, new scala.runtime.AbstractFunction0() {
                public Object apply() {
                    context.addJar(jar.getAbsolutePath());
                    return scala.runtime.BoxedUnit.UNIT;
                }
            });
        }
    }
}
"""
