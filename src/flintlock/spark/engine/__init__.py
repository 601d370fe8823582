"""The Spark application of a TaskManager: its process, its JVM, the calls into it, publishing files through it."""
