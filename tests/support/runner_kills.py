"""A program that runs a table runner and kills it before its second commit."""

KILLED = """
import os, pickle, signal, sys
from dataclasses import dataclass
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.table.runner import RunnerOptions, TableRunner
from penstock.lake.table.sync import SyncOptions
from penstock.lake.table.topic_export import Exports
from penstock.lake.table.warehouse import Warehouse
from tests.support.table_runs import Watched, nothing

store_url, place = pickle.load(sys.stdin.buffer)
count = 0
def die(_):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
class Killing(Warehouse):
    def table(self, name, layout):
        return Watched(super(Killing, self).table(name, layout), die, nothing)
given = {name: getattr(place, name) for name in place.__dataclass_fields__}
source = StoreCluster(store_url)
exports = Exports(source, Killing(**given), SyncOptions())
TableRunner(source, exports.open, RunnerOptions(workers=1, once=True)).run()
"""
