"""Tests of `tutti trace` on files that the tests write: its conclusions, its errors for files that are broken or no
traces, and how it finds the rank in a name."""
import pickle

import pytest
import torch
from test_flight_recorder import traces_in
from torch.torch_version import TorchVersion

from torch_tutti import _recorder, _trace, cli
from torch_tutti._trace_export import export, translated


def entry(number, name="tutti:all_reduce", state="completed", sizes=((4,),), files=()):
    sizes = [list(size) for size in sizes]
    return {"process_group": ("0", "all"), "profiling_name": name, "collective_seq_id": number, "is_p2p": False,
            "state": state, "retired": state == "completed", "failure": "", "input_sizes": sizes,
            "time_created_ns": 1, "timeout_ms": 1000,
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


def test_conclusion_names_operation_and_ranks():
    open_one = entry(2, state="started")
    assert verdict(trace(entry(1)), trace(entry(1))).endswith("all have completed 1 operation")
    assert verdict(trace(entry(1), open_one), trace(entry(1))) == "=> operation 2 was not called by rank 1"
    assert verdict(trace(entry(1), open_one), trace(entry(1), open_one)).startswith(
        "=> operation 2 was called identically by ranks 0-1 and is not finished: it is slow")
    assert verdict(trace(entry(1), open_one, ranks="[0, 1]")) == (
        "=> operation 2 was called identically by rank 0 and is not finished: it is slow, or waits for rank 1, which "
        "left no trace")
    assert verdict(trace(open_one), trace(entry(2, state="started", sizes=((5,),)))) == (
        "=> operation 1 is no longer in the traces: keep more with TORCH_FR_BUFFER_SIZE")
    assert verdict(trace(entry(1), open_one), trace(entry(1), entry(2, state="started", sizes=((5,),)))) == (
        "=> operation 2 differs: all_reduce [4] float on rank 0; all_reduce [5] float on rank 1")
    alike = [trace(entry(1, "tutti:all_to_all", "started", ((size,),))) for size in (4, 5)]
    # Sizes of all_to_all may differ between ranks.
    assert "called identically" in verdict(*alike)


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
    (None, [], "is not a folder; traces are files in a folder, one for each rank. They are written when a group "),
    ({}, [], "there are no traces in {folder}. They are written when a group fails, if TORCH_FR_BUFFER_SIZE=2000 and "
             "TORCH_FR_DUMP_TEMP_FILE={folder}/trace_ were set for the program, on all ranks"),
    ({"notes.txt": b"x"}, [], "there are no traces in {folder}"),
    ({"a0": trace(), "b0": trace()}, [], "has files of several kinds: a, b. Select the traces with --prefix"),
    ({"a0": trace()}, ["--prefix", "b"], "there are no traces that begin with 'b' and end in a rank in {folder}"),
    ({"a0": b""}, [], "{folder}/a0 is not a trace of the flight recorder: Ran out of input"),
    ({"a0": pickle.dumps(trace())[:50]}, [], "{folder}/a0 is not a trace of the flight recorder: "),
    ({"a0": b"what is this"}, [], "{folder}/a0 is not a trace of the flight recorder: "),
    ({"a0": {"entries": []}}, [], "{folder}/a0 is not a trace of the flight recorder"),
    ({"a0": Trap()}, [], "it refers to builtins.print, but a trace holds only plain data"),
    ({"a0": {**trace(), "entries": None}}, [],
     "{folder}/a0 is not a trace of the flight recorder: trace['entries'] is of type NoneType"),
    ({"a0": {**trace(), "pg_status": {}}}, [],
     "{folder}/a0 is not a trace of the flight recorder: pg_status has no entry"),
    ({"a0": trace(entry(1)), "a1": trace({**entry(1), "state": 5})}, [], "{folder}/a1 is not a trace of the flight "
     "recorder: trace['entries'][0]['state'] is of type int"),
    ({"a0": trace({**entry(1), "process_group": ("9", "")})}, [], "entries[0] belongs to no group in pg_config"),
    ({"a0": trace(ranks="[0, __import__('os')]")}, [], "the ranks of group '0' are \"[0, __import__('os')]\""),
    ({"a0": {**trace(), "version": "3.1"}}, [], "{folder}/a0 is of version 3.1; this command reads versions 2.x"),
    ({"a0": trace()}, ["--as", "gloo"], "--as and --out must be given together"),
    ({"a0": trace()}, ["--as", "gloo", "--out", "{folder}/.."], "has other files, such as "),
])
def test_command_names_what_is_wrong_with_the_files(tmp_path, capsys, monkeypatch, files, arguments, problem):
    for name in _recorder.SIZE:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "traces"
    for name, content in (files or {}).items():
        write(folder, name, content)
    if files is not None:
        folder.mkdir(exist_ok=True)
    status = cli.main(["trace", str(folder), *(argument.format(folder=folder) for argument in arguments)])
    printed = capsys.readouterr()
    assert status == 1 and printed.out == ""
    assert problem.format(folder=folder) in printed.err and printed.err.count("\n") == 1


def test_command_names_the_variables_of_a_recorder_that_is_off(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert cli.main(["trace", str(tmp_path)]) == 1
    assert "if TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE=" in capsys.readouterr().err


def test_command_says_where_traces_are_if_the_variables_are_set(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "traces" / "trace_"))
    assert cli.main(["trace", str(tmp_path / "traces")]) == 1
    assert "TORCH_FR_BUFFER_SIZE is set here; if it was set for the program, too, no rank" in capsys.readouterr().err
    assert cli.main(["trace", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert f"With the environment of this command they are written into {tmp_path}/traces: look" in printed


def test_command_describes_and_exports_traces(tmp_path, capsys):
    any_source = {**entry(0, "tutti:recv 0<-any", "started"), "is_p2p": True}
    write(tmp_path / "traces", "trace_0", trace(entry(1), any_source))
    write(tmp_path / "traces", "trace_1", trace(entry(1)))
    assert cli.main(["trace", str(tmp_path / "traces")]) == 0
    assert "rank 0 is in a message: recv [4] float from any rank" in capsys.readouterr().out
    # The command may overwrite files that it wrote.
    for _ in range(2):
        assert cli.main(["trace", str(tmp_path / "traces"), "--as", "nccl", "--out", str(tmp_path / "for torch")]) == 0
    assert "2 traces are in" in (printed := capsys.readouterr().out) and printed.endswith("receives: 1\n")
    names = [e["profiling_name"] for e in traces_in(tmp_path / "for torch").of_rank[0]["entries"]]
    assert names == ["nccl:all_reduce"]


def parts_of(value, way=()):
    """Yields the path to each part of a value, as a tuple of keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, part in inner:
        yield (*way, key)
        yield from parts_of(part, (*way, key))


def changed(value, way, new):
    """Returns a copy with `new` at the end of the path `way`, or without that part if new is `absent`."""
    if not way:
        return new
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    pairs = [(key, changed(part, way[1:], new) if key == way[0] else part) for key, part in pairs]
    pairs = [(key, part) for key, part in pairs if part is not absent]
    return dict(pairs) if isinstance(value, dict) else [part for _, part in pairs]


absent = object()


def test_any_content_of_a_trace_is_read_or_refused(tmp_path):
    """Leaves out each part of a good trace once, and replaces it by other values."""
    message = {**entry(0, "tutti:recv 0<-1", "started"), "is_p2p": True}
    late = {**entry(2, "tutti:all_reduce", "started", files=["/a/train.py"]), "failure": "late",
            "failure_class": "TimeoutError", "retired": True}
    good = {"rank": 0, **trace(entry(1), late, message)}
    write(tmp_path / "traces", "trace_0", good)
    write(tmp_path / "traces", "trace_1", {**good, "rank": 1})
    reports, refusals = set(), set()
    for way in [(), *parts_of(good)]:
        for new in (absent, None, -1, 10 ** 30, "", "x", [], {}, [None], 1.5):
            if way or new is not absent:
                write(tmp_path / "traces", "trace_0", changed(good, way, new))
            try:
                traces = traces_in(tmp_path / "traces")
                reports.add(_trace.describe(traces))
                export(traces, "gloo", str(tmp_path / "out"))
            except ValueError as error:
                refusals.add(str(error))
    assert len(reports) > 20 and all(report.startswith("traces of ranks 0-1") for report in reports)
    begin = f"{tmp_path}/traces/trace_0 is"
    assert len(refusals) > 50 and not [text for text in refusals if not text.startswith(begin) or "\n" in text]


@pytest.mark.parametrize("begins, ranks", [("run2", (0, 1)), ("run2", (0, 10, 21)), ("2", (0, 1)), ("run_", (7,))])
def test_names_of_traces_may_have_digits_before_the_rank(tmp_path, capsys, begins, ranks):
    for rank in ranks:
        write(tmp_path / "traces", f"{begins}{rank}", {"rank": rank, **trace(entry(1), ranks=str(list(ranks)))})
    for arguments in [], ["--prefix", begins]:
        assert cli.main(["trace", str(tmp_path / "traces"), *arguments]) == 0
        assert ": all have completed 1 operation" in capsys.readouterr().out
        assert _trace.read(str(tmp_path / "traces"), *arguments[1:]).of_rank.keys() == set(ranks)
    write(tmp_path / "traces", f"{begins}30", {"rank": 0, **trace()})
    assert cli.main(["trace", str(tmp_path / "traces")]) == 1
    assert f"files of several kinds: {begins}, {begins}3. Select the traces with --prefix" in capsys.readouterr().err


def test_torch_needs_another_name_of_the_backend(tmp_path):
    """Proves that --as is needed before torch 2.15, which only warns of an unknown name."""
    from torch.distributed.flight_recorder.components.types import Op
    whole = {**entry(1), "p2p_seq_id": 0, "time_created_ns": 0}
    if torch.__version__ < TorchVersion("2.15"):
        with pytest.raises(AssertionError, match="tutti not in"):
            Op(whole, {"0": {0, 1}}, "0")
    else:
        assert Op(whole, {"0": {0, 1}}, "0").type == "all_reduce"
    (event,) = translated(trace(whole), {}, "gloo")
    assert Op(event, {"0": {0, 1}}, "0").type == "all_reduce"
