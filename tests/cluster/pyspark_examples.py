"""The examples of PySpark's own distribution: how each is run, and what is known of those that cannot finish.

They read `data`, which the package has, and `examples/src/main/resources`, which it has not: `write_inputs` makes
files of the same shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import pyarrow.orc
import pyarrow.parquet
import pyspark
from msgspec import Struct

HOME: Final = Path(pyspark.__file__).parent
SCRIPTS: Final = HOME / "examples" / "src" / "main" / "python"
RESOURCES: Final = "examples/src/main/resources"

#: The arguments of the scripts that need some; all others have defaults.
ARGUMENTS: Final = {
    "als.py": ("20", "30", "4", "2"),
    "avro_inputformat.py": (f"{RESOURCES}/users.avro",),
    "kmeans.py": ("data/mllib/kmeans_data.txt", "2", "0.1"),
    "logistic_regression.py": ("points.txt", "2"),
    "mllib/gaussian_mixture_model.py": ("data/mllib/gmm_data.txt", "2"),
    "mllib/kmeans.py": ("data/mllib/kmeans_data.txt", "2"),
    "mllib/logistic_regression.py": ("data/mllib/sample_svm_data.txt", "2"),
    "mllib/word2vec.py": ("words.txt",),
    "pagerank.py": ("data/mllib/pagerank_data.txt", "2"),
    "parquet_inputformat.py": (f"{RESOURCES}/users.parquet",),
    "sort.py": ("numbers.txt",),
    "sql/jdbc.py": ("jdbc:derby:memory:examples;create=true",),
    "sql/streaming/structured_sessionization.py": ("127.0.0.1", "9"),
    "wordcount.py": ("words.txt",),
}

_CONVERTERS: Final = "needs classes of Spark's examples jar, which PySpark's package does not have"
#: Why scripts fail, under `spark-submit` as well: each was run so on 19 November 2026, with the same reason.
FAILING: Final = {
    "avro_inputformat.py": _CONVERTERS,
    "mllib/gaussian_mixture_model.py": "takes no blanks at the beginning of lines, which the data for it has",
    "parquet_inputformat.py": _CONVERTERS,
    "sql/datasource.py": "reads a file that its own settings make unreadable",
    "sql/streaming/structured_sessionization.py": "has an output mode that Spark refuses for its query",
}
_SOCKET: Final = ("127.0.0.1", "{port}")
#: Those whose queries run until they are stopped: their arguments, and what they print of the lines that they read.
STREAMING: Final = {
    "sql/streaming/structured_blockchain_admission_control.py": ((), "Batch: 1"),
    "sql/streaming/structured_network_wordcount.py": (_SOCKET, "|apache|    2|"),
    "sql/streaming/structured_network_wordcount_session_window.py": (_SOCKET, "apache|    2|"),
    "sql/streaming/structured_network_wordcount_windowed.py": ((*_SOCKET, "3600"), "|apache|2    |"),
    "streaming/hdfs_wordcount.py": (("{directory}",), "('apache', 2)"),
    "streaming/network_wordcount.py": (_SOCKET, "('apache', 2)"),
    "streaming/network_wordjoinsentiments.py": (_SOCKET, "Happiest topics in the last 5 seconds"),
    "streaming/recoverable_network_wordcount.py": ((*_SOCKET, "checkpoint", "out"), "('apache', 2)"),
    "streaming/sql_network_wordcount.py": (_SOCKET, "|apache|    2|"),
    "streaming/stateful_network_wordcount.py": (_SOCKET, "('apache', 2)"),
}
#: Why scripts are not run at all.
NOT_RUN: Final = {
    "mllib/streaming_linear_regression_example.py": "prints no prediction: it prints the stream of them, once",
    "sql/streaming/structured_kafka_wordcount.py": "needs a Kafka broker",
    "transitive_closure.py": "runs for many minutes, under `spark-submit` as well: its partitions double in each round",
}
#: Those that are run each time: quick ones of all kinds, and two that need a driver of their own.
QUICK: Final = frozenset({
    "ml/binarizer_example.py", "ml/bucketizer_example.py", "ml/chi_square_test_example.py",
    "ml/correlation_example.py", "ml/count_vectorizer_example.py", "ml/dct_example.py",
    "ml/elementwise_product_example.py", "ml/estimator_transformer_param_example.py", "ml/feature_hasher_example.py",
    "ml/imputer_example.py", "ml/index_to_string_example.py", "ml/max_abs_scaler_example.py",
    "ml/min_max_scaler_example.py", "ml/n_gram_example.py", "ml/normalizer_example.py",
    "ml/onehot_encoder_example.py", "ml/pca_example.py", "ml/pipeline_example.py",
    "ml/polynomial_expansion_example.py", "ml/rformula_example.py", "ml/standard_scaler_example.py",
    "ml/stopwords_remover_example.py", "ml/string_indexer_example.py", "ml/tf_idf_example.py",
    "ml/tokenizer_example.py", "ml/vector_assembler_example.py", "ml/vector_size_hint_example.py", "sql/arrow.py",
    "mllib/correlations_example.py", "wordcount.py",
})  # fmt: skip


class Example(Struct, frozen=True):
    """One script, its arguments, and why it fails if it does."""

    script: str
    arguments: tuple[str, ...]
    fails: str


def examples() -> tuple[Example, ...]:
    """Return all scripts of the installed package that are run."""
    names = sorted(path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.rglob("*.py") if path.stem != "__init__")
    left_out = NOT_RUN.keys() | STREAMING.keys()
    return tuple(
        Example(name, ARGUMENTS.get(name, ()), FAILING.get(name, "")) for name in names if name not in left_out
    )


def write_inputs(directory: Path) -> None:
    """Put the files that scripts read into an empty directory, in which they are run."""
    (directory / "data").symlink_to(HOME / "data")
    resources = directory / RESOURCES
    (resources / "dir1" / "dir2").mkdir(parents=True)
    (directory / "words.txt").write_text("china trade silk china river wall\n" * 40)
    (directory / "numbers.txt").write_text("3 1 2\n")
    (directory / "points.txt").write_text("".join(f"{n % 2}{f' 0.{n}' * 10}\n" for n in range(9)))
    (resources / "people.json").write_text(
        '{"name":"Michael"}\n{"name":"Andy", "age":30}\n{"name":"Justin", "age":19}\n'
    )
    (resources / "people.txt").write_text("Michael, 29\nAndy, 30\nJustin, 19\n")
    (resources / "people.csv").write_text("name;age;job\nJorge;30;Developer\nBob;32;Developer\n")
    (resources / "people.xml").write_text("<people><person><name>Andy</name><age>30</age></person></people>\n")
    (resources / "kv1.txt").write_text("238\x01val_238\n86\x01val_86\n")
    (resources / "user.avsc").write_text('{"type":"record","name":"User","fields":[]}')
    users = cast("Any", pyarrow).table({
        "name": ["Alyssa", "Ben"],
        "favorite_color": pyarrow.array([None, "red"], pyarrow.string()),
        "favorite_numbers": pyarrow.array([[3, 9], []], pyarrow.list_(pyarrow.int32())),
    })  # fmt: skip
    cast("Any", pyarrow.parquet).write_table(users, resources / "users.parquet")
    cast("Any", pyarrow.orc).write_table(users, resources / "users.orc")
    (resources / "users.avro").write_bytes(b"")
    for path in ("dir1/file1.parquet", "dir1/dir2/file2.parquet"):
        row = cast("Any", pyarrow).table({"file": [Path(path).name]})
        cast("Any", pyarrow.parquet).write_table(row, resources / path)
    (resources / "dir1" / "file3.json").write_text('{"file":"corrupt.json"}\n')
