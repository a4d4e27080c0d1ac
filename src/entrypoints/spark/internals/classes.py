"""Name the classes of Spark in the JVM."""

from __future__ import annotations

# -- published: the interfaces of data sources --------------------------------------------------------------------

CATALOG = "org.apache.spark.sql.connector.catalog."
READ = "org.apache.spark.sql.connector.read."
WRITE = "org.apache.spark.sql.connector.write."
EXPRESSIONS = "org.apache.spark.sql.connector.expressions."
METRIC = "org.apache.spark.sql.connector.metric."
PROCEDURE = CATALOG + "procedures."
INDEX = CATALOG + "index."
SOURCE_FILTER = "org.apache.spark.sql.sources.Filter"
INSERTABLE = "org.apache.spark.sql.sources.InsertableRelation"
TYPE = "org.apache.spark.sql.types.DataType"
STRUCT = "org.apache.spark.sql.types.StructType"
OPTIONS = "org.apache.spark.sql.util.CaseInsensitiveStringMap"
ANALYSIS_ERROR = "org.apache.spark.sql.AnalysisException"
QUERY_CONTEXT = "org.apache.spark.QueryContext"

# -- private -------------------------------------------------------------------------------------------------------

COLUMNS = CATALOG + "CatalogV2Util"
WRITE_INFO = WRITE + "LogicalWriteInfoImpl"
SETTINGS = "org.apache.spark.sql.internal.SQLConf"
INTERNAL_ROW = "org.apache.spark.sql.catalyst.InternalRow"
ROW = "org.apache.spark.sql.catalyst.expressions.GenericInternalRow"
ROW_OPERATIONS = "org.apache.spark.sql.catalyst.util.RowDeltaUtils"
ARTIFACTS = "org.apache.spark.JobArtifactSet"
CLASS_LOADING = "org.apache.spark.util.Utils"
COMPILER = "org.codehaus.janino.SimpleCompiler"

_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."
PYTHON_SOURCE = _PYTHON + "PythonDataSourceV2"
PYTHON_FUNCTION = _PYTHON + "UserDefinedPythonDataSource"
PYTHON_SCAN = _PYTHON + "PythonScan"
PYTHON_WRITE = _PYTHON + "PythonWrite"
PYTHON_PARTITION = _PYTHON + "PythonInputPartition"
PYTHON_READERS = _PYTHON + "PythonPartitionReaderFactory"
PYTHON_WRITERS = _PYTHON + "PythonBatchWriterFactory"

_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
NO_SUCH_TABLE = _ANALYSIS + "NoSuchTableException"
TABLE_EXISTS = _ANALYSIS + "TableAlreadyExistsException"
NO_SUCH_NAMESPACE = _ANALYSIS + "NoSuchNamespaceException"
NAMESPACE_EXISTS = _ANALYSIS + "NamespaceAlreadyExistsException"
NAMESPACE_NOT_EMPTY = _ANALYSIS + "NonEmptyNamespaceException"
NO_SUCH_VIEW = _ANALYSIS + "NoSuchViewException"
VIEW_EXISTS = _ANALYSIS + "ViewAlreadyExistsException"
NO_SUCH_INDEX = _ANALYSIS + "NoSuchIndexException"
INDEX_EXISTS = _ANALYSIS + "IndexAlreadyExistsException"
ILLEGAL_ARGUMENT = "org.apache.spark.SparkIllegalArgumentException"
UNSUPPORTED = "org.apache.spark.SparkUnsupportedOperationException"
RUNTIME_ERROR = "org.apache.spark.SparkRuntimeException"

FREE_TEXT = "_LEGACY_ERROR_USER_RAISED_EXCEPTION"
"""The error condition whose only parameter is the message."""
