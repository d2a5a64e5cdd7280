"""The channels on which blocks move: bounded queues, priorities and deadlines over a few threads each."""

from hifc_ray.transfer.channel import Channel, Priority, Ticket, every

__all__ = ["Channel", "Priority", "Ticket", "every"]
