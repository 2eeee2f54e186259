"""The table of run.sh: Open MPI and Allfold in the same form, out of place and in place, in microseconds; of several runs
the medians."""

import json
import statistics
import sys

rows = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    key = (record["in_place"], record["ranks"], record["bytes"])
    how = " registered" if record.get("registered") else ""
    rows.setdefault(key, {}).setdefault(record["backend"] + how, []).append(record["time_us"])

forms = ("threads", "shm registered", "shm")
heads = "".join(f" {name} us | times as fast | GB/s |" for name in ("threads", "processes, registered", "processes, copied"))
print("| form | ranks | bytes | Open MPI us |" + heads)
print("|:--|" + "--:|" * (3 + 3 * len(forms)))
for (in_place, ranks, size), times in sorted(rows.items()):
    times = {side: statistics.median(all_runs) for side, all_runs in times.items()}
    peer = times["open_mpi"]
    cells = ["in place" if in_place else "out of place", f"{ranks}", f"{size}", f"{peer:.2f}"]
    for backend in forms:
        mine = times.get(backend)
        cells += [f"{mine:.2f}", f"{peer / mine:.2f}", f"{size / mine / 1e3:.2f}"] if mine else ["", "", ""]
    print("| " + " | ".join(cells) + " |")
