"""From what the ResourceManager knows to the shapes of REST. Pure."""

from __future__ import annotations

from typing import Any

from flintlock.api import cluster as shapes
from flintlock.model.slots import TaskManagerInfo


def task_manager(info: TaskManagerInfo) -> shapes.TaskManagerSummary:
    """One TaskManager in a listing."""
    return shapes.TaskManagerSummary(**_task_manager_fields(info))


def task_manager_details(info: TaskManagerInfo) -> shapes.TaskManagerDetails:
    """One TaskManager with the jobs that use its slots."""
    return shapes.TaskManagerDetails(
        **_task_manager_fields(info),
        allocated_slots=[
            shapes.AllocatedSlotInfo(job_id=share.job_id, resource=_resource(info, share.slots), assigned_tasks=1)
            for share in info.allocated
        ],
        metrics=shapes.TaskManagerMetrics(heap_max=info.hardware.managed_memory),
    )


def _task_manager_fields(info: TaskManagerInfo) -> dict[str, Any]:
    heap = info.hardware.managed_memory
    return {
        "id": info.id,
        "path": f"grpc://{info.address}",
        "data_port": int(info.address.rpartition(":")[2] or 0),
        "jmx_port": -1,
        "time_since_last_heartbeat": info.last_heartbeat_ms,
        "slots_number": info.slots,
        "free_slots": info.free_slots,
        "assigned_tasks": len(info.allocated),
        "total_resource": _resource(info, info.slots),
        "free_resource": _resource(info, info.free_slots),
        "hardware": shapes.HardwareDescription(
            cpu_cores=info.hardware.cpu_cores,
            physical_memory=info.hardware.physical_memory,
            free_memory=heap,  # of its engine: Flink's dashboard shows it as the size of the heap
            managed_memory=0,
        ),
        "memory_configuration": shapes.MemoryConfiguration(
            framework_heap=0,
            task_heap=heap,
            framework_off_heap=0,
            task_off_heap=0,
            network_memory=0,
            managed_memory=0,
            jvm_metaspace=0,
            jvm_overhead=0,
            total_flink_memory=heap,
            total_process_memory=heap,
        ),
        "spark_master": info.engine,
    }


def _resource(info: TaskManagerInfo, slots: int) -> shapes.ResourceProfileInfo:
    share = info.hardware.managed_memory * slots // max(info.slots, 1)
    return shapes.ResourceProfileInfo(
        cpu_cores=float(slots),
        task_heap_memory=share >> 20,
        task_off_heap_memory=0,
        managed_memory=0,
        network_memory=0,
        extended_resources={},
    )
