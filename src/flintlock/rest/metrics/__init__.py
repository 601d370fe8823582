"""Metrics in Prometheus' text format and by Flink's metric ids."""
