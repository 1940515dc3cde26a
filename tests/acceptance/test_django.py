"""Django: the project of the guide, with a real database, server and worker; tasks that fail, retry, and never were.

On Python 3.12 and later this is Django 6 with its own tasks, and before that Django 5 with the package django-tasks.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from everbell.errors import NotFound
from tests.acceptance.guide_stage import GuideApplication, call, database_variables, write_files
from tests.acceptance.machine import until
from tests.acceptance.outbox_stage import rows_left
from tests.acceptance.processes import ServerProcess
from tests.services import shared

GUIDE = Path(__file__).parents[2] / "docs/django.md"
HAS_TASKS = sys.version_info >= (3, 12)
WORDS = {} if HAS_TASKS else {"django.tasks": "django_tasks"}

MORE_TASKS = """
import sys
from django.tasks import task
from django.tasks.signals import task_finished, task_started
from everbell import App, Occurrence, Refuse, Retry

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

task_finished.connect(lambda task_result, **_: say("finished", task_result.status), weak=False)

@task(takes_context=True)
def flaky(context, name, *, loud=False):
    say("flaky", name, loud, "attempt", context.attempt)
    if context.attempt == 1:
        raise ValueError("not today")
    return "done"

@task
async def awaited(name):
    say("awaited", name)

@task
def refusing():
    raise Refuse("never")

@task
def failing():
    raise KeyError("always")

def no_task():
    pass

app = App()

@app.task
def typed(number: int) -> None:
    say("typed", number)
"""


@dataclass
class Project:
    """The project of the guide, its database, and a server that collects from it."""

    application: GuideApplication
    database: str
    client: Client

    def manage(self, *arguments: str) -> str:
        """Run `manage.py`; returns its output."""
        done = self.application.run("manage.py", *arguments)
        assert done.code == 0, done
        return done.out

    def shell(self, program: str) -> str:
        return self.manage("shell", "-v", "0", "-c", program)

    def until_status(self, id: str, status: str) -> None:
        until(lambda: self.status(id) == status, lambda: f"{id} {status}: {self.status(id)}")

    def status(self, id: str) -> str:
        try:
            return self.client.get(id).status
        except NotFound:
            return "unknown"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("django")
    database = shared.postgres().fresh_database()
    names = write_files(GUIDE, folder, WORDS)
    assert {"manage.py", "shop/settings.py", "shop/models.py", "shop/tasks.py", "shop/urls.py"} < set(names)
    for package in ("shop", "shop/migrations"):
        (folder / package / "__init__.py").touch()
    more = MORE_TASKS
    for word, other in WORDS.items():
        more = more.replace(word, other)
    (folder / "shop/more.py").write_text(more)
    with (folder / "shop/settings.py").open("a") as settings:
        direct = '{"BACKEND": TASKS["default"]["BACKEND"], "QUEUES": ["direct"], "OPTIONS": {"RETRY": %s}}'
        settings.write(f"\nTASKS['direct'] = {direct % {'max_attempts': 2, 'backoff': '1ms', 'max_backoff': '2ms'}}\n")
        settings.write("EVERBELL['APP'] = 'shop.more.app'\n")
        settings.write("import django\nif django.VERSION < (6,):\n    INSTALLED_APPS.append('django_tasks')\n")
    place = tmp_path_factory.mktemp("everbell")
    with ServerProcess(place, "--outbox", f"{database}?tenant=shop", store=f"rocksdb:{place}/data") as server:
        variables = database_variables(database) | {"EVERBELL_SERVER": server.url}
        application = GuideApplication(folder, variables)
        with Client(server.url, "shop") as client:
            ready = Project(application, database, client)
            ready.manage("check")
            ready.manage("migrate")
            yield ready


def test_the_project_of_the_guide_runs(project: Project) -> None:
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run", "shop")
    wsgi = project.application.folder / "wsgi.py"
    wsgi.write_text(
        'import os\nos.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"\n'
        "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
    )
    with (
        project.application.serve("wsgi:application") as web,
        project.application.begin("manage.py", "everbell_worker", "--concurrency", "2") as worker,
    ):
        port = web.line()
        status, placed = call(port, "/orders/7")
        assert status == 201
        project.until_status(placed["id"], "scheduled")
        assert project.client.get(placed["id"]).tags == ("shop.tasks.remind",)
        assert call(port, "/orders/7")[0] == 500, "the number is taken: the transaction is rolled back"
        nudged = call(port, "/orders/7/nudge")[1]["id"]
        project.until_status(nudged, "delivered")
        assert call(port, f"/orders/7/task/{nudged}", "GET")[1] == {"reminders": 1, "task": "delivered"}
        assert call(port, f"/orders/7/pay/{placed['id']}")[1] == {"state": "paid"}
        project.until_status(placed["id"], "cancelled")
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0
    ended = [
        project.client.page(status=status, tag="shop.tasks.remind").events for status in ("delivered", "cancelled")
    ]
    assert [[event.id for event in events] for events in ended] == [[nudged], [placed["id"]]]
    assert list(project.client.list(tag="shop.tasks.remind")) == [], "nothing of the second order 7 is left"


def test_a_task_of_a_rolled_back_transaction_never_was(project: Project) -> None:
    out = project.shell(
        """
from django.db import transaction
from shop.tasks import remind
try:
    with transaction.atomic():
        print(remind.enqueue(1).id)
        raise ValueError
except ValueError:
    with transaction.atomic():
        print(remind.enqueue(2).id)
"""
    )
    undone, done = out.split()
    until(lambda: rows_left(project.database) == 0, "the outbox is empty")
    assert (project.status(undone), project.status(done)) == ("unknown", "scheduled")
    project.client.cancel(done)


def test_tasks_fail_retry_and_tell_their_state(project: Project) -> None:
    with project.application.begin("manage.py", "everbell_worker", "--queue", "direct", "--queue", "default") as worker:
        out = project.shell(
            """
from shop import more
for task, args, kwargs in (
    (more.flaky, ["a"], {"loud": True}), (more.awaited, ["b"], {}), (more.refusing, [], {}), (more.failing, [], {})
):
    print(task.using(backend="direct", queue_name="direct").enqueue(*args, **kwargs).id)
"""
        )
        flaky, awaited, refusing, failing = out.split()
        lines = {worker.line() for _ in range(7)}
        for id, status in ((flaky, "delivered"), (awaited, "delivered"), (refusing, "dead"), (failing, "dead")):
            project.until_status(id, status)
        # A task of Everbell's own shares the queue `default` with those of Django.
        project.client.schedule(5, to="queue:default", in_=0, headers={"x-everbell-task": "typed"})
        assert worker.line() == "typed 5"
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0
    assert lines == {
        "flaky a True attempt 1",
        "flaky a True attempt 2",
        "awaited b",
        "finished SUCCESSFUL",
        "finished FAILED",
    }
    told = project.shell(
        f"""
from shop import more
def show(task, id):
    result = task.using(backend="direct", queue_name="direct").get_result(id)
    errors = [error.exception_class.__name__ for error in result.errors]
    print(result.status, result.attempts, result.is_finished, errors)
    return result
show(more.flaky, "{flaky}")
show(more.refusing, "{refusing}")
show(more.failing, "{failing}")
result = show(more.awaited, "{awaited}")
for id in ("", "{awaited}", "x"):
    look = (lambda: more.flaky.get_result(id)) if id else (lambda: result.return_value)
    try:
        look()
    except Exception as error:
        print(type(error).__name__)
"""
    )
    assert told.splitlines() == [
        "SUCCESSFUL 2 True ['ValueError']",
        "FAILED 1 True ['Exception']",
        "FAILED 2 True ['KeyError', 'KeyError']",
        "SUCCESSFUL 1 True []",
        "NotImplementedError",
        "TaskResultMismatch",
        "TaskResultDoesNotExist",
    ]


def test_only_tasks_can_be_called_by_name(project: Project) -> None:
    with project.application.begin("manage.py", "everbell_worker", "--queue", "direct"):
        for path, reason in (("shop.more.no_task", "is no task"), ("os.abort", "is no task"), ("no.such", "no task")):
            id = project.client.schedule(
                {"args": [], "kwargs": {}},
                to="queue:direct",
                in_=0,
                headers={"x-everbell-task": path},
                retry={"max_attempts": 1},
            ).id
            project.until_status(id, "dead")
            assert reason in (project.client.get(id).reason or "")


def test_wrong_settings_are_named(project: Project, tmp_path: Path) -> None:
    application = project.application
    settings = (application.folder / "shop/settings.py").read_text()
    for wrong, told in (
        ("EVERBELL = {'SERVER': 'nonsense'}", "everbell.E001"),
        ("EVERBELL = {'SERVR': 'http://a'}", "EVERBELL has no setting SERVR"),
        ("TASKS['default']['OPTIONS'] = {'OUTBOX': 'other'}", "everbell.E002"),
        ("TASKS['default']['OPTIONS'] = {'RETRYS': 1}", "RETRYS is no option"),
    ):
        (application.folder / "shop/wrong.py").write_text(f"{settings}\n{wrong}\n")
        done = application.run("manage.py", "check", "--settings", "shop.wrong")
        assert done.code != 0
        assert told in done.err
    done = application.run("manage.py", "everbell_worker", "--queue", "unknown")
    assert done.code == 1
    assert "the app has no handler for unknown" in done.err
