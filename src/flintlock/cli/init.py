"""`flintlock init`: a small job to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from flintlock.model.errors import Refused

PYTHON: Final = '''\
"""A first job: counts words.

Run it with `flintlock run {file}:job`, show its plan with `flintlock info {file}:job`.
"""

import flintlock as fl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

job = fl.Job("{name}", params={{"least": 2}})


@job.step()
def lines(spark: SparkSession) -> DataFrame:
    """Replace this by a source of your own: job.source("lines", format="text", path="some/folder")."""
    return spark.createDataFrame([("to be or not to be",), ("that is the question",)], "value STRING")


@job.step(inputs=[lines])
def words(lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split("value", " ")).alias("word"))


counts = job.sql("counts", "SELECT word, count(*) AS n FROM words GROUP BY word HAVING n >= :least", inputs=[words])

job.result("top", counts, limit=20)
# job.sink("files", counts, format="parquet", path="out/counts", mode="overwrite")

if __name__ == "__main__":
    fl.run(job)
'''

YAML: Final = """\
# A first job: counts words. Run it with `flintlock run {file}`, show its plan with `flintlock info {file}`.
version: 1
name: {name}
params: {{least: 2}}
steps:
  # Replace this by a source of your own: {{source: {{format: text, path: some/folder}}}}
  lines:
    sql: "SELECT * FROM VALUES ('to be or not to be'), ('that is the question') AS t(value)"
  counts:
    sql: >
      SELECT word, count(*) AS n FROM (SELECT explode(split(value, ' ')) AS word FROM lines)
      GROUP BY word HAVING n >= :least
    inputs: [lines]
  top: {{result: {{limit: 20}}, inputs: [counts]}}
"""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="job.py")
def init(file: Path) -> None:
    """Write a small job to FILE (job.py; a name that ends in .yaml gives one in YAML)."""
    if file.suffix not in (".py", ".yaml", ".yml"):
        raise Refused(f"{str(file)!r}: a job is written in a .py or a .yaml file")
    text = (PYTHON if file.suffix == ".py" else YAML).format(file=file, name=file.stem.replace("-", "_"))
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise Refused(f"{str(file)!r} already exists; choose another name") from None
    except OSError as error:
        raise Refused(f"{str(file)!r} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {file}; run it with: flintlock run {file}{':job' if file.suffix == '.py' else ''}")
