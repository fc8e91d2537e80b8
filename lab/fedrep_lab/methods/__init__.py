"""FedREP and its rivals, by name. A new one is a class with `step` in a file of its own, and a line here."""

from fedrep_lab.methods.cltk import CltK
from fedrep_lab.methods.dense import Central, DenseMean, F2ed, FedAvg, Share
from fedrep_lab.methods.fedrep import FedREP
from fedrep_lab.methods.interface import Method, Setting, Step
from fedrep_lab.methods.rcgd import RcgdEf
from fedrep_lab.methods.sparse_secagg import SparseSecAgg

METHODS: dict[str, type[Method]] = {
    "fedrep": FedREP,
    "rcgd_ef": RcgdEf,
    "share": Share,
    "sparse_secagg": SparseSecAgg,
    "f2ed": F2ed,
    "fedavg": FedAvg,
    "dense_mean": DenseMean,
    "central": Central,
    "clt_k": CltK,
}

__all__ = ["METHODS", "Method", "Setting", "Step"]
