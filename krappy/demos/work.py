"""`krappy demo work`: a task queue in which the tasks of a killed worker go to others.

Three processes share one group. One of them is killed in the middle of its tasks. The tasks that it had not
acknowledged are delivered again to the others, with `deliveries` 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.demos.show import Show
from krappy.demos.workers import done_twice, team
from krappy.errors import UnknownGroup

if TYPE_CHECKING:
    from krappy.blocking import Client

TOPIC, GROUP = "tasks", "workers"
TASKS = 300
SECONDS = 0.01  # that each task takes


def run(client: Client, address: str, show: Show) -> None:
    """Runs the demo. Raises Failure when a task was lost."""
    show.heading(f"{TASKS} tasks, three workers, one of which will crash")
    client.create_topic(TOPIC, partitions=1)
    with team() as workers:
        for _ in range(3):
            workers.start(address, TOPIC, GROUP, SECONDS)
        workers.wait(lambda: _members(client) == 3, 60, "starting the workers")
        with client.producer(TOPIC) as producer:
            for number in range(TASKS):
                producer.send(f"task {number}")
        workers.wait(lambda: workers.counts()[1] >= 5, 60, "the first tasks")
        workers.kill(1)
        show.line(f"worker 1 was killed with SIGKILL; done by then: {workers.counts()}")
        workers.wait(lambda: client.group(GROUP).lag == 0, 60, "the other workers' taking over")
        notes = workers.notes()

    done = {note.offset for some in notes for note in some}
    again = [note for index in (0, 2) for note in notes[index] if note.deliveries > 1]
    show.table(
        ["worker", "tasks done", "of them taken over"],
        [[index, len(some), sum(1 for note in some if note.deliveries > 1)] for index, some in enumerate(notes)],
    )
    show.check("every task was done", done == set(range(TASKS)), f"missing: {sorted(set(range(TASKS)) - done)[:10]}")
    show.check("tasks that the crashed worker held went to the others", len(again) > 0)
    twice = done_twice(notes)
    at_risk = {offset for _, offset in twice}
    # Only a task that was done but not acknowledged when its worker was killed can be done again: at most one here.
    show.check("no task was done twice but what the crash cut off", at_risk <= {notes[1][-1].offset}, f"{at_risk}")
    show.check("nothing is left to do", client.group(GROUP).lag == 0)
    show.fact("tasks", TASKS)
    show.fact("taken_over", len(again))
    show.fact("done_twice", len(twice))


def _members(client: Client) -> int:
    """How many workers have joined the group. The group does not exist before the first one."""
    try:
        return len(client.group(GROUP).members)
    except UnknownGroup:
        return 0
