"""Tests of the results of script/bench: a file for each processor, tables of several processors side by side, and rows
that are judged by their limit."""
import json

import pytest
from test_bench_page import PAGE, module_at, row

AMD = {"name": "AMD EPYC 9B45", "vendor": "AuthenticAMD", "family": "26", "model": "2", "cores": 2,
       "caches": "L2 1 MiB"}
INTEL = {"name": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "vendor": "GenuineIntel", "family": "6",
         "model": "143", "cores": 2}
TIMES = {"tutti": 2.0, "tutti, shared": 1.0, "Open MPI": 3.0, "MPICH": 1.5}
PEERS = {"peers": {"rows": [{"collective": "gather", "bytes": 8, "flag_ns": 61.0, "times": TIMES}]}}


@pytest.fixture(scope="module")
def report():
    return module_at("tests/bench/report.py")


@pytest.fixture
def processors(report, monkeypatch):
    monkeypatch.setattr(report.processors, "versions", lambda: {"system": "Linux 6"})
    return report.processors


def core(**changes):
    return {"core": {"rows": [row(**changes), row(goal=0, met=None)]}}


def limited(**changes):
    """Returns a row of 16 MiB that is judged by its limit, because memcpy copies that much within a cache of its
    core."""
    return row(bytes=16 << 20, beside="memcpy", goal=1.12, goal_p99=0, median_us=1032.0, beside_us=584.0, ratio=1.77,
               limit_us=310.0, crossing_us=1000.0, judged_by="crossing", met=True, **changes)


# ---- files ----
@pytest.mark.parametrize("processor, name", [
    (AMD, "amd-epyc-9b45-family26-model2-2cores.json"),
    (INTEL, "intel-xeon-platinum-8481c-family6-model143-2cores.json"),
    ({"name": "aarch64", "vendor": "0x41", "model": "0xd40", "cores": 4}, "arm-aarch64-model0xd40-4cores.json"),
])
def test_file_is_named_by_its_processor(processors, processor, name):
    assert processors.file_name(processor) == name


def test_identity_of_a_processor_is_read_from_cpuinfo(processors, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Some Xeon\n")
    found = processors.identity(cpuinfo)
    assert (found["name"], found["vendor"], found["model"]) == ("Some Xeon", "GenuineIntel", "143")
    assert "family" not in found and found["cores"] > 0


def test_each_processor_gets_a_file(processors, tmp_path):
    results = {**core(), **PEERS, "regret": {"anything": [1]}}
    paths = [processors.add(results, tmp_path / "measured", processor) for processor in (AMD, INTEL)]
    assert paths == sorted((tmp_path / "measured").iterdir())
    document = json.loads(paths[0].read_text())
    assert document["processor"] == AMD and document["regret"] == {"anything": [1]}
    assert (document["goals"]["met"], document["goals"]["of"], len(document["goals"]["rows"])) == (0, 1, 1)
    assert document["peers"]["rows"][0]["ratios"] == {"private": {"Open MPI": 1.5, "MPICH": 0.75},
                                                      "shared": {"Open MPI": 3.0, "MPICH": 1.5}}
    assert document["peers"]["counts"] == {"private": {"of": 1, "behind": 1}, "shared": {"of": 1, "behind": 0}}


def test_what_was_not_measured_again_stays_in_the_file(processors, tmp_path):
    path = processors.add({**core(), **PEERS}, tmp_path, AMD)
    processors.add(core(met=True), tmp_path, AMD)
    document = json.loads(path.read_text())
    assert document["goals"]["met"] == 1 and document["peers"]["counts"]["private"]["of"] == 1


def test_measuring_replaces_a_partial_file(processors, tmp_path):
    path = processors.add(PEERS, tmp_path, AMD)
    path.write_text(json.dumps({**json.loads(path.read_text()), "partial": True, "source": "somebody"}))
    processors.add(core(), tmp_path, AMD)
    assert json.loads(path.read_text()).keys() == {"processor", "versions", "goals"}


def test_nothing_measured_writes_no_file(processors, tmp_path):
    assert processors.add({"ddp": "text"}, tmp_path, AMD) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, problem", [
    ("{", "is broken: it is not JSON"),
    ("[]", "it is no object"),
    ("{}", "'processor' lacks cores, name"),
    ('{"processor": {"name": "A", "cores": 2}, "goals": {"rows": []}}', "'goals' lacks met, of"),
    ('{"processor": {"name": "A", "cores": 2}, "goals": {"met": 0, "of": 1, "rows": [{"case": "allreduce"}]}}',
     "row 1 of 'goals' lacks bytes"),
    ('{"processor": {"name": "A", "cores": 2}, "peers": {"counts": {}, "rows": [1]}}', "row 1 of 'peers' lacks bytes"),
    ('{"processor": {"name": "A", "cores": 2}, "peers": {"counts": {}, "rows": 1}}', "the rows of 'peers' are no list"),
    ('{"processor": {"name": "A", "cores": 2}, "partial": true}', "it is partial and has no 'source'"),
])
def test_a_broken_file_is_named(processors, tmp_path, text, problem):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(ValueError, match=r"odd\.json is broken: ") as error:
        processors.read_all(tmp_path)
    assert problem in str(error.value)


def test_files_of_the_repository_are_sound(processors, report):
    documents = processors.read_all(report.ROOT / "docs/measured")
    assert documents and not any(path in processors.beside(documents) for path in ("None", "nan"))
    for document in documents.values():
        if not document.get("partial"):
            goals = document["goals"]
            assert goals["of"] + goals.get("moved", 0) == len(goals["rows"])


# ---- side by side ----
def test_two_processors_stand_side_by_side(processors, tmp_path):
    processors.add({**core(ratio=1.3), **PEERS}, tmp_path, AMD)
    processors.add({"core": {"rows": [row(ratio=1.1, met=True), limited(in_place=False)]}}, tmp_path, INTEL)
    text = processors.beside(processors.read_all(tmp_path))
    amd, intel = (processors.file_name(one)[:-len(".json")] for one in (AMD, INTEL))
    assert f"| [{amd}]({amd}.json) | AMD EPYC 9B45 (family 26, model 2) | 2 | L2 1 MiB | 61 to 61 |" in text
    assert "| 0 of 1 | 0 of 1 | 1 of 1 |" in text and "| 2 of 2 |  |  |" in text
    assert f"| case | bytes | tensors | goal | {amd} | {intel} |" in text
    assert "| allreduce | 8 | private, in place | ≤ 1.25 | 1.30, **no** | 1.10 |" in text
    assert "| allreduce | 16 Mi | private | ≤ 1.12 |  | 1.77; 1.03 × limit: crossing |" in text
    assert f"| {amd} | private | gather | 8: MPICH 0.75 |" in text


def test_a_row_whose_cores_moved_is_not_judged(processors, tmp_path):
    rows = [row(met=True), row(bytes=48, met=None, moved=True, tries=3, flag_after_ns=340.0)]
    document = json.loads(processors.add({"core": {"rows": rows}}, tmp_path, AMD).read_text())
    assert [document["goals"][name] for name in ("of", "met", "moved")] == [1, 1, 1]
    text = processors.beside(processors.read_all(tmp_path))
    assert "| 1 of 1 |" in text and "| allreduce | 48 | private, in place | ≤ 1.25 | 1.50, moved |" in text


def test_partial_file_has_its_source_on_the_page(processors, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"processor": {"name": "A", "cores": 2}, "partial": True,
                                                 "source": "From a letter", "notes": ["More."],
                                                 "goals": {"met": 22, "of": 47, "rows": []}}))
    processors.add(core(), tmp_path, INTEL)
    documents = processors.read_all(tmp_path)
    text = processors.beside(documents)
    assert list(documents)[-1] == "a" and "a is partial: From a letter. More." in text and "| 22 of 47 |" in text


# ---- the page ----
def test_row_judged_by_its_limit_is_marked(report):
    text = report.goals({"core": {"rows": [limited(), row()]}})
    assert text.startswith("1 of 2 goals are met. Rows judged by their limit: 1.\n")
    assert "| 1.77 | ≤ 1.25 × limit: crossing 1.00 ms; not 1.12 | 61 | yes; 1.03 × limit |" in text
    missed = report.goals({"core": {"rows": [{**limited(), "median_us": 1300.0, "met": False}]}})
    assert "| **no**; 1.30 × limit |" in missed


def run(report, monkeypatch, tmp_path, **files):
    for folder in ("results", "measured"):
        (tmp_path / folder).mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / name.replace("__", "/")).with_suffix(".json").write_text(text)
    page = tmp_path / "page.md"
    page.write_text("".join(PAGE.format(name) for name in report.BLOCKS))
    monkeypatch.setattr("sys.argv", ["report.py", str(tmp_path / "results"), "--pages", str(page), "--images",
                                     str(tmp_path / "img"), "--measured", str(tmp_path / "measured")])
    report.main()
    return page.read_text()


def test_a_run_adds_its_processor_to_the_page(report, processors, monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "identity", lambda: AMD)
    text = run(report, monkeypatch, tmp_path, results__peers=json.dumps(PEERS["peers"]))
    assert "AMD EPYC 9B45 (family 26, model 2)" in text and "gather | 8: MPICH 0.75 |" in text
    assert [path.name for path in (tmp_path / "measured").iterdir()] == [processors.file_name(AMD)]


def test_a_broken_file_stops_before_anything_is_written(report, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*odd\.json is broken: it is not JSON"):
        run(report, monkeypatch, tmp_path, results__peers=json.dumps(PEERS["peers"]), measured__odd="{")
    assert [path.name for path in (tmp_path / "measured").iterdir()] == ["odd.json"]
    assert (tmp_path / "page.md").read_text().count("old") == len(report.BLOCKS)


def test_report_without_results_is_an_error(report, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="run script/bench"):
        run(report, monkeypatch, tmp_path)
