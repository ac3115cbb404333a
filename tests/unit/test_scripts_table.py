"""The README's table of scripts is complete."""

from __future__ import annotations

from tests.e2e import scripts_table

SCRIPTS = scripts_table.REPOSITORY / "tests" / "e2e" / "scripts"


def test_the_readme_lists_every_script_and_no_other() -> None:
    listed = {name.split()[0] for name in scripts_table.shown()}
    assert listed == {path.name for path in SCRIPTS.glob("*.py")} | {"examples/gpt_3d.py"}


def test_a_row_is_read_back_as_it_was_written() -> None:
    row = scripts_table.Row("a.py --flag 2", "data", 2, (7, 1234), 3 << 20, 4 << 20, (), 1_500_000)
    assert row.line() == "| `a.py --flag 2` | data | 2 | 7 to 1,234 | 3.00 MiB | none | 1.5 ms |"
    text = f"{scripts_table.BEGIN}\n\n{scripts_table.table([row])}\n{scripts_table.END}"
    assert scripts_table.rows_in(text) == {"a.py --flag 2": row.cells()}
