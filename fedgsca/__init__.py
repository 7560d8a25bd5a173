"""FedGSCA: federated image classification across hospitals whose labels are partly wrong."""

__version__ = "0.2.0"
