"""The command `tutti trace` on files that tests write: its verdicts, what it says of files that are broken or are none,
and how it finds the rank in a name."""
import pickle

import pytest
from test_flight_recorder import judged_by_torch, traces_in, verdict_of

from torch_tutti import _recorder, _trace, cli
from torch_tutti._trace_export import translated


def entry(number, name="tutti:all_reduce", state="completed", sizes=((4,),), files=()):
    sizes = [list(size) for size in sizes]
    return {"process_group": ("0", "all"), "profiling_name": name, "collective_seq_id": number, "is_p2p": False,
            "state": state, "retired": state == "completed", "failure": "", "input_sizes": sizes,
            "frames": [{"name": "f", "filename": name, "line": 1} for name in files],
            "output_sizes": sizes, "input_dtypes": ["Float"], "output_dtypes": ["Float"]}


def trace(*entries, called=None, ranks="[0, 1]"):
    over = [e["collective_seq_id"] for e in entries if e["state"] == "completed"]
    numbers = [e["collective_seq_id"] for e in entries]
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "all", "ranks": ranks, "pg_id": 0}},
            "pg_status": {"0": {"last_enqueued_collective": called or max(numbers, default=0),
                                "last_completed_collective": max(over, default=0)}}, "entries": list(entries)}


def verdict(*traces):
    return _trace.describe(_trace.Traces("trace_", dict(enumerate(traces)))).splitlines()[-1].strip()


def test_verdicts():
    open_one = entry(2, state="started")
    assert verdict(trace(entry(1)), trace(entry(1))).endswith("all have completed 1 operation")
    assert verdict(trace(entry(1), open_one), trace(entry(1))) == "=> operation 2 was not called by rank 1"
    assert verdict(trace(entry(1), open_one), trace(entry(1), open_one)).startswith(
        "=> operation 2 was called alike by ranks 0-1 and is not over: it is slow")
    assert verdict(trace(entry(1), open_one, ranks="[0, 1]")) == (
        "=> operation 2 was called alike by rank 0 and is not over: it is slow, or waits for rank 1, of which there is "
        "no trace")
    assert verdict(trace(open_one), trace(entry(2, state="started", sizes=((5,),)))) == (
        "=> operation 1 is no longer in the traces: keep more with TORCH_FR_BUFFER_SIZE")
    assert verdict(trace(entry(1), open_one), trace(entry(1), entry(2, state="started", sizes=((5,),)))) == (
        "=> operation 2 differs: all_reduce [4] float on rank 0; all_reduce [5] float on rank 1")
    alike = [trace(entry(1, "tutti:all_to_all", "started", ((size,),))) for size in (4, 5)]
    assert "called alike" in verdict(*alike)            # which may differ in size


PACKAGES = "/v/lib/python3.11/site-packages"


@pytest.mark.parametrize("files, site", [
    ([f"{PACKAGES}/torch/distributed/c10d_logger.py", f"{PACKAGES}/typing_extensions.py", "/a/train.py", "/x.py"],
     "(f, /a/train.py:1)"),
    (["/usr/lib/python3.11/contextlib.py", f"{PACKAGES}/deepspeed/comm.py", "train.py"], "(f, train.py:1)"),
    ([f"{PACKAGES}/torch/x.py", f"{PACKAGES}/typing_extensions.py", f"{PACKAGES}/trainer/run.py", "<frozen runpy>"],
     f"(f, {PACKAGES}/trainer/run.py:1)"),
    ([f"{PACKAGES}/torch/x.py"], ""),
])
def test_site_is_where_the_program_called(files, site):
    assert _trace._site(entry(1, files=files)) == site


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))


class Trap:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize("files, arguments, problem", [
    (None, [], "is not a folder; traces lie in one, a file for each rank. They are written when a group fails, if TOR"),
    ({}, [], "there are no traces in {folder}. They are written when a group fails, if TORCH_FR_BUFFER_SIZE=2000 and "
             "TORCH_FR_DUMP_TEMP_FILE={folder}/trace_ were set for the program, on all ranks"),
    ({"notes.txt": b"x"}, [], "there are no traces in {folder}"),
    ({"a0": trace(), "b0": trace()}, [], "has files of several kinds: a, b. Say with --prefix which are the traces"),
    ({"a0": trace()}, ["--prefix", "b"], "there are no traces that begin with 'b' and end in a rank in {folder}"),
    ({"a0": b""}, [], "{folder}/a0 is not a trace of the flight recorder: Ran out of input"),
    ({"a0": pickle.dumps(trace())[:50]}, [], "{folder}/a0 is not a trace of the flight recorder: "),
    ({"a0": b"what is this"}, [], "{folder}/a0 is not a trace of the flight recorder: "),
    ({"a0": {"entries": []}}, [], "{folder}/a0 is not a trace of the flight recorder"),
    ({"a0": Trap()}, [], "it asks for builtins.print, and a trace holds plain data only"),
    ({"a0": {**trace(), "version": "3.1"}}, [], "{folder}/a0 is of version 3.1; this command reads versions 2.x"),
    ({"a0": trace()}, ["--as", "gloo"], "--as and --out are given together or not at all"),
    ({"a0": trace()}, ["--as", "gloo", "--out", "{folder}/.."], "has other files, such as "),
])
def test_command_says_what_is_wrong(tmp_path, capsys, monkeypatch, files, arguments, problem):
    for name in _recorder.SIZE:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "traces"
    for name, content in (files or {}).items():
        write(folder, name, content)
    if files is not None:
        folder.mkdir(exist_ok=True)
    status = cli.main(["trace", str(folder), *(argument.format(folder=folder) for argument in arguments)])
    said = capsys.readouterr()
    assert status == 1 and said.out == ""
    assert problem.format(folder=folder) in said.err and said.err.count("\n") == 1


def test_command_does_not_tell_to_set_what_is_set(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "traces" / "trace_"))
    assert cli.main(["trace", str(tmp_path / "traces")]) == 1
    assert "TORCH_FR_BUFFER_SIZE is set here; if it was for the program, no rank" in capsys.readouterr().err
    assert cli.main(["trace", str(tmp_path)]) == 1
    assert f"As the environment is here, they are written into {tmp_path}/traces: look" in capsys.readouterr().err


def test_command(tmp_path, capsys):
    any_source = {**entry(0, "tutti:recv 0<-any", "started"), "is_p2p": True}
    write(tmp_path / "traces", "trace_0", trace(entry(1), any_source))
    write(tmp_path / "traces", "trace_1", trace(entry(1)))
    assert cli.main(["trace", str(tmp_path / "traces")]) == 0
    assert "rank 0 is in a message: recv [4] float from any rank" in capsys.readouterr().out
    for _ in range(2):                                  # what it wrote itself may be written again
        assert cli.main(["trace", str(tmp_path / "traces"), "--as", "nccl", "--out", str(tmp_path / "for torch")]) == 0
    assert "2 traces are in" in (said := capsys.readouterr().out) and said.endswith("receives: 1\n")
    names = [e["profiling_name"] for e in traces_in(tmp_path / "for torch").of_rank[0]["entries"]]
    assert names == ["nccl:all_reduce"]


def test_torch_knows_no_tutti(tmp_path):
    """When it does, --as has had its day."""
    from torch.distributed.flight_recorder.components.types import Op
    with pytest.raises(AssertionError, match="tutti not in"):
        Op(entry(1), {"0": {0, 1}}, "0")
    (event,) = translated(trace({**entry(1), "p2p_seq_id": 0, "time_created_ns": 0}), {}, "gloo")
    assert Op(event, {"0": {0, 1}}, "0").type == "all_reduce"
