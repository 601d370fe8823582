"""What each key of a job document means, in the words that editors show: the descriptions of its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROPERTIES: Final[Mapping[str, Mapping[str, str]]] = {
    "JobSpec": {
        "version": "The version of this form: 1.",
        "name": "The job's name. It need not be unique: a name stands for its latest job.",
        "jobId": "The job's id, 32 hexadecimal digits. Where absent, the cluster makes one.",
        "type": "BATCH or STREAMING. Where absent: STREAMING if a source streams.",
        "parallelism": "How many slots each region of the job takes. Where absent, parallelism.default.",
        "engine": "Which Spark driver the job uses. Where absent: auto for a program, dedicated for a job with jars or"
        " packages, else shared.",
        "directory": "Where relative paths start. Where absent, a client sets the directory that it runs in.",
        "params": "Parameters with their defaults: ${name} in texts, :name in SQL.",
        "secretParams": "The parameters that are secrets: their values are given as ${secret:NAME} only.",
        "artifacts": "Files that are sent with the job: paths relative to the document, or names with their kinds.",
        "jars": "Jars for the job's own Spark driver.",
        "packages": "Maven coordinates (group:artifact:version) that the job's own Spark driver downloads.",
        "requirements": "A file of requirements, which are installed into a Python environment of the job's own.",
        "pyenv": "A packed Python environment, which the job runs in.",
        "config": "Options of the job, and settings of its Spark session (spark.*).",
        "labels": "Texts to find the job by.",
        "steps": "The steps of the job by their names.",
        "client": "The versions that functions were pickled with. Set by a client.",
        "clientTimeout": "Cancel the job this many seconds after the last heartbeat of its client. Set by a client.",
        "fixedParams": "The parameters in paths that a client has made absolute. Set by a client.",
    },
    "ArtifactSpec": {
        "name": "The path of the file, relative to the document; in the job it has the last part as its name.",
        "blob": "The key of content that has been uploaded already.",
        "kind": "What is done with the file before user code runs.",
    },
    "StepSpec": {
        "source": "Read a table, files or any other data source of Spark.",
        "sql": "A query. Its inputs are views of their names.",
        "function": "A Python function, package.module:name, that returns a DataFrame.",
        "sink": "Write the rows of the input.",
        "result": "Store the first rows of the input with the job, for clients to fetch.",
        "program": "Run a PySpark script. It is the only step of its job.",
        "foreachBatch": "A Python function, package.module:name, that is called with each batch of a streaming query.",
        "inputs": "The steps whose rows this one reads.",
        "exchange": "pipelined: its readers are in the same region. blocking: its rows are stored for its readers.",
        "parallelism": "How many slots the step's region takes, in place of the job's.",
        "cache": "Keep the rows for the other outputs of the region.",
        "cpu": "How many cores the step's task may use.",
        "memory": "How much memory the Python process of the step's task may use, such as 2g.",
        "watermark": "How late rows of a stream may be.",
        "uid": "The identity of a streaming query: its offsets and state are found again under it.",
        "outputMode": "Which rows of a streaming query each batch writes.",
        "trigger": "When a streaming query begins its next batch. Where absent, as soon as the last one has ended.",
    },
    "SourceSpec": {
        "format": "The name of Spark's data source: parquet, csv, json, jdbc, …",
        "path": "A path or pattern, or several.",
        "table": "The name of a table, in place of a path.",
        "schema": "The columns as in CREATE TABLE: id BIGINT, day DATE.",
        "options": "Options of the data source.",
        "stream": "Read the source as a stream, which makes the job a streaming job.",
    },
    "PickleSpec": {
        "pickle": "The name of the artifact with the function.",
        "place": "Where the function was defined, for people.",
    },
    "SinkSpec": {
        "format": "The name of Spark's data source: parquet, csv, json, jdbc, …",
        "path": "The directory to write to.",
        "table": "The name of a table in a catalog, in place of a path.",
        "mode": "What is done about data that is there already.",
        "partitionBy": "Columns by whose values the files are divided into directories.",
        "options": "Options of the data source.",
    },
    "ResultSpec": {"limit": "How many rows are stored."},
    "ProgramSpec": {
        "file": "The script, relative to the document.",
        "args": "Its arguments.",
        "module": "The module to run as python -m does, of the package that is the file.",
        "env": "Environment variables of the program.",
        "path": "Where the script is on the machine that submits the job. A client sets it.",
    },
    "WatermarkSpec": {
        "column": "The column with the time of a row.",
        "delay": "How late a row may be, such as 10 minutes.",
    },
    "TriggerSpec": {
        "processingTime": "Begin a batch this often, such as 10 seconds.",
        "availableNow": "Read what is there now, and end.",
        "realTime": "Spark's real-time mode, with checkpoints this often.",
    },
    "Versions": {
        "flintlock": "The version of Flintlock.",
        "python": "The version of Python.",
        "pyspark": "The version of PySpark.",
    },
}
"""By the name of the definition (`JobSpec` is the whole document) and the key."""
