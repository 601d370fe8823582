"""`flintlock info`: a job's plan before anything of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from flintlock.cli.jobs.run import job_options, module_option, overrides_of
from flintlock.cli.settings import json_option, place_options, print_json, read_settings
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration
from flintlock.model.errors import Refused
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex
from flintlock.model.operations import Program
from flintlock.model.regions import Region, regions_of

if TYPE_CHECKING:
    from rich.tree import Tree

    from flintlock.client.authoring.package import JobPackage
    from flintlock.spark.runner_messages import Analyzed, StepSchema


@click.command()
@click.argument("target")
@click.argument("args", nargs=-1)
@click.option("--analyze", is_flag=True, help="Resolve every step's columns too; starts a Spark engine, reads no data.")
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure.")
@module_option
@job_options
@json_option
@place_options
def info(
    *,
    target: str,
    args: tuple[str, ...],
    analyze: bool,
    verbose: bool,
    as_json: bool,
    as_module: bool,
    conf: Path | None,
    state_dir: str | None,
    **given: Any,
) -> int:
    """Show the plan of TARGET: its regions, their steps and exchanges, and what each output guarantees."""
    from flintlock.client.authoring.targets import read_target
    from flintlock.client.display.console import output_console

    settings, _ = read_settings(conf, state_dir, given["defines"])
    overrides = overrides_of(**given)
    package = read_target(target, args, connect=not overrides.needs_driver, as_module=as_module).package(overrides)
    found = _analyzed(package, settings) if analyze else None
    schemas = {schema.step: schema for schema in found.schemas} if found is not None else {}
    failure = found.failure if found is not None else None
    if as_json:
        print_json(plan_document(package.graph, schemas) | ({"failure": failure} if analyze else {}))
    else:
        output_console().print(plan_tree(package.graph, schemas))
    if failure is not None:
        from flintlock.model.failures.failure_text import render

        click.echo(click.style(render(failure, verbose=verbose), fg="red"), err=True)
    return 0 if failure is None else 1


def _analyzed(package: JobPackage, settings: LoadedConfiguration) -> Analyzed:
    if any(isinstance(vertex.operation, Program) for vertex in package.graph.vertices):
        raise Refused("--analyze: only job graphs can be analysed; what a program does is known only when it runs")
    require_extra("cluster", "--analyze")
    from flintlock.entrypoints.analysis import analyze

    click.echo("starting a Spark engine …", err=True)
    return analyze(package.graph, package.files, settings.configuration)


def plan_tree(graph: JobGraph, schemas: Mapping[StepName, StepSchema] = MappingProxyType({})) -> Tree:
    """Return the plan as a tree: regions, in each its steps, under each its inputs and outputs."""
    from rich.text import Text
    from rich.tree import Tree

    regions = regions_of(graph)
    parts = [f"{graph.job_type.value.lower()} job", f"{graph.engine.value} engine"]
    if graph.parallelism is not None:
        parts.append(f"parallelism {graph.parallelism}")
    root = Tree(Text.assemble((graph.name, "bold"), f"  {', '.join(parts)}"))
    for region in regions:
        branch = root.add(Text(_region_line(region), "cyan"))
        for name in region.steps:
            vertex = graph.vertex(name)
            leaf = branch.add(Text.assemble((vertex.name, "bold"), f"  {vertex.description}"))
            if vertex.inputs:
                leaf.add(
                    Text(f"reads {', '.join(_input_text(graph, source, region) for source in vertex.inputs)}", "dim")
                )
            if vertex.name in schemas:
                leaf.add(Text(f"columns {_columns_text(schemas[vertex.name])}", "dim"))
            if vertex.uid:
                leaf.add(Text(f"uid {vertex.uid}", "dim"))
            if vertex.guarantee is not None:
                leaf.add(Text(f"guarantee: {vertex.guarantee.value}", "green"))
    return root


def plan_document(graph: JobGraph, schemas: Mapping[StepName, StepSchema] = MappingProxyType({})) -> dict[str, Any]:
    """Return the plan as data."""
    return {
        "name": graph.name,
        "type": graph.job_type,
        "engine": graph.engine,
        "parallelism": graph.parallelism,
        "artifacts": [{"name": item.name, "kind": item.kind, "size": item.size} for item in graph.artifacts],
        "regions": [
            {
                "region": region.id,
                "upstream": region.upstream,
                "parallelism": region.parallelism,
                "reads": region.reads,
                "materialises": region.materialises,
                "steps": [_step_document(graph.vertex(name), schemas.get(name)) for name in region.steps],
            }
            for region in regions_of(graph)
        ],
    }


def _region_line(region: Region) -> str:
    line = f"region {region.id}"
    if region.upstream:
        line += f", after region {', '.join(str(parent) for parent in region.upstream)}"
    return line + (f", parallelism {region.parallelism}" if region.parallelism is not None else "")


def _input_text(graph: JobGraph, source: str, region: Region) -> str:
    if graph.vertex(source).exchange is not Exchange.BLOCKING:
        return source
    return f"{source} (blocking{', of another region' if source not in region.steps else ''})"


def _columns_text(schema: StepSchema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema.columns)


def _step_document(vertex: JobVertex, schema: StepSchema | None) -> dict[str, Any]:
    return {
        "columns": schema.columns if schema is not None else None,
        "name": vertex.name,
        "kind": vertex.operation.kind,
        "description": vertex.description,
        "inputs": vertex.inputs,
        "exchange": vertex.exchange if vertex.has_output else None,
        "parallelism": vertex.parallelism,
        "cache": vertex.cache,
        "guarantee": vertex.guarantee,
        "uid": vertex.uid or None,
        "outputMode": None if vertex.query is None else vertex.query.output_mode,
        "trigger": None if vertex.query is None else vertex.query.trigger.describe(),
        "watermark": vertex.watermark,
    }
