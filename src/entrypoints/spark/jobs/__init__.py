"""Jobs over tables, run on Spark: tasks do the work on the workers, the driver commits once through the catalog."""
