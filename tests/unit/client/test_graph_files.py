"""Files that only define job graphs are told apart from programs, which do something when they are run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from flintlock.client.authoring.graph_files import only_jobs_of
from flintlock.client.authoring.targets import read_target
from flintlock.model.errors import Refused

EXAMPLES = Path(__file__).parents[3] / "examples"

IMPORTS = "import flintlock as fl\nfrom pyspark.sql import SparkSession, functions as F\n"
JOB = f"{IMPORTS}job = fl.Job('daily')\njob.result('r', job.sql('one', 'SELECT 1'))\n"


def jobs(source: str) -> list[str]:
    return only_jobs_of(ast.parse(source))


@pytest.mark.parametrize(
    "more",
    [
        "",
        "@job.step\ndef other(spark: SparkSession):\n    print('when it runs')\n    return spark.range(3)\n",
        "from pyspark.sql.types import StructType\nschema = StructType().add('a', 'int')\n",
        "@F.udf('int')\ndef add(n): return helper(n)\nclean = F.udf(lambda text: helper(text))\n",
        "price = F.col('p') * 2\n",
        "from pathlib import Path\nhere = Path(__file__).parent\njob.sql('two', (here / 'two.sql').read_text())\n",
        "for name in ['a', 'b'.upper()]:\n    rows = job.source(name.lower(), path=f'in/{name}')\n",
        "steps = [job.source(name.lower(), path='in') for name in ['a']]\n",
        "with open('q.sql') as file:\n    job.sql('two', file.read())\n",
        "import os\nif os.environ.get('FULL'):\n    job.sql('all', 'SELECT 1')\nelse:\n    raise ValueError('no')\n",
        "import sys, logging\nsys.path.insert(0, 'lib')\nlogging.basicConfig()\nlog = logging.getLogger(__name__)\n",
        "try:\n    import ujson\nexcept ImportError:\n    ujson = None\n",
        "class Columns:\n    day = 'day'\n    @property\n    def all(self): return work()\n",
        "if __name__ == '__main__':\n    pass\n",
    ],
)
def test_a_file_that_only_defines_a_graph_has_its_name(more: str) -> None:
    assert jobs(JOB + more) == ["job"]


@pytest.mark.parametrize(
    "more",
    [
        "print('hello')\n",
        "spark = SparkSession.builder.getOrCreate()\n",
        "import pyspark\nrows = pyspark.sql.SparkSession.builder.getOrCreate().range(3).count()\n",
        "handle = fl.connect('http://cluster').submit(job)\n",
        "from flintlock import connect\nwith connect('http://cluster') as client:\n    client.submit(job)\n",
        "def main(): print('hello')\nmain()\n",
        "def main(): return print('hello')\ncode = main()\n",
        "import helper\nhelper.submit(job)\n",
        "import helper\nrows = helper.load()\n",
        "from helper import load\nrows = load()\n",
        "import atexit\n@atexit.register\ndef main(): print('hello')\n",
        "from pathlib import Path\nPath('out').mkdir()\n",
        "for name in ['a']:\n    print(name)\n",
        "while True:\n    break\n",
        "if __name__ == '__main__':\n    print('hello')\n",
        "class Work:\n    print('hello')\n",
        "import sys\nsys.exit(3)\n",
        "job.params['a'], print('hello')\n",
    ],
)
def test_a_file_that_may_do_something_is_a_program(more: str) -> None:
    assert jobs(JOB + more) == []


def test_a_file_without_a_job_is_a_program() -> None:
    assert jobs("") == []
    assert jobs("def main(): pass\nvalue = 3\n") == []
    assert jobs("from elsewhere import Job\njob = Job('daily')\n") == []


def test_names_of_several_jobs_and_of_functions_that_return_one() -> None:
    assert jobs("from flintlock import Job as J\na = J('a')\nb: J = J('b')\na.sql('x', 'SELECT 1')\n") == ["a", "b"]
    assert jobs("import flintlock\ndef build(day='x'):\n    job = flintlock.Job(day)\n    return job\n") == ["build"]
    assert jobs("import flintlock\ndef build():\n    return flintlock.Job('a')\njob = build()\n") == ["job"]
    assert jobs("import flintlock\ndef build(day):\n    return flintlock.Job(day)\n") == []  # no target can name it


@pytest.mark.parametrize("example", ["revenue.py", "udf_step.py", "streaming_sessions.py", "fails_in_user_code.py"])
def test_the_examples_without_their_main_block_only_define_a_graph(example: str) -> None:
    source, main, _ = (EXAMPLES / example).read_text().partition('if __name__ == "__main__":')
    assert main
    assert jobs(source) == ["job"]


def test_the_refusal_names_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pkg").mkdir()
    Path("pkg/__init__.py").write_text("")
    Path("pkg/graph.py").write_text(JOB)
    Path("two.py").write_text("import flintlock as fl\na = fl.Job('a')\nb = fl.Job('b')\n")

    for target, as_module, named in [
        ("pkg/graph.py", False, "`flintlock run pkg/graph.py:job`"),
        ("pkg.graph", True, "`flintlock run pkg.graph:job`"),
        ("two.py", False, "`flintlock run two.py:a` or `flintlock run two.py:b`"),
    ]:
        with pytest.raises(Refused) as caught:
            read_target(target, as_module=as_module, application=True)
        assert caught.value.public.endswith(
            f".py only defines a job graph and would do nothing as a program: run the graph with {named}"
        )
