import csv
import io

from regimen.reports.table import Table

TABLE = Table(["run", "a|b", "<i>"], [["one, two", 0.1 + 0.2, None], ["<b>", True, "x|y"]])


def test_text_is_aligned_and_an_absent_cell_is_empty():
    assert TABLE.lines() == [
        "run       a|b                  <i>",
        "one, two  0.30000000000000004",
        "<b>       True                 x|y",
    ]


def test_a_bar_does_not_end_a_cell_of_markdown():
    assert TABLE.markdown().splitlines() == [
        "| run | a\\|b | <i> |",
        "|---|---|---|",
        "| one, two | 0.30000000000000004 |  |",
        "| <b> | True | x\\|y |",
    ]


def test_csv_gives_back_every_digit_and_comma(tmp_path):
    TABLE.write_csv(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_bytes().decode()
    assert "\r" not in text
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [["run", "a|b", "<i>"], ["one, two", "0.30000000000000004", ""], ["<b>", "True", "x|y"]]
    assert float(rows[1][1]) == 0.1 + 0.2


def test_html_escapes_head_and_cells_and_marks_text():
    page = TABLE.html(text_columns=["run"])
    assert "<th class='text'>run</th><th>a|b</th><th>&lt;i&gt;</th>" in page
    assert "<td class='text'>&lt;b&gt;</td><td>True</td><td>x|y</td>" in page
    assert "<b>" not in page and "class" not in TABLE.html().removeprefix("<div class='scroll'>")


def test_records_have_the_columns_of_all_rows_in_order():
    table = Table.of_records([{"a": 1}, {"b": 2, "a": None}, {"c": 3}])
    assert table.head == ["a", "b", "c"]
    assert table.rows == [[1, None, None], [None, 2, None], [None, None, 3]]
    assert table.first(1).rows == [[1, None, None]]


def test_columns_are_functions_of_a_row():
    table = Table.of({"n": len, "upper": str.upper}, ["ab", "c"])
    assert (table.head, table.rows) == (["n", "upper"], [[2, "AB"], [1, "C"]])
