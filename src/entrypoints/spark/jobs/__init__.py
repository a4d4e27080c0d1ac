"""Run jobs over tables on Spark: workers run the tasks, the driver commits."""
