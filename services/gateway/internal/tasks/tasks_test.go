package tasks_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/tasks"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

func newStore(t *testing.T) *tasks.Store {
	t.Helper()
	store, err := tasks.NewStore()
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func callOf(subject string, size int) tasks.Call {
	return tasks.Call{
		Owner: subject, Server: "files", Header: http.Header{"Mcp-Name": {"safe"}}, Message: make([]byte, size),
		Holder: limits.Owner{Accounts: principal.AccountsOfKey(principal.Key{Tenant: "acme", Subject: subject}), Server: "files"},
	}
}

func inAnHour() time.Time { return time.Now().Add(time.Hour) }

func TestTask_WaitsRunsAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		task := store.Add(callOf("ana", 100), "a-1", inAnHour())
		got := task.Report()
		want := tasks.State{ID: got.ID, Status: tasks.Working, Created: time.Now().UTC(), Updated: time.Now().UTC(), TTL: 75 * time.Minute, PollInterval: 2 * time.Second}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("a new task (-want +got):\n%s", diff)
		}
		if !tasks.IsOwnID(got.ID) || tasks.IsOwnID("t-1") {
			t.Errorf("%s is not distinguished from the id of a server's task", got.ID)
		}
		if approval, ok := task.AwaitedApproval(); approval != "a-1" || !ok {
			t.Errorf("it waits for %q, %t", approval, ok)
		}
		if !task.Begin(func() {}) || task.Begin(func() {}) {
			t.Error("its call can't be begun, or is begun twice")
		}
		if _, ok := task.AwaitedApproval(); ok || !task.Report().Running {
			t.Error("it waits while its call is made")
		}
		task.End(tasks.Completed, tasks.Outcome{Result: jsontext.Value(`{}`)})
		if got := task.Report(); got.Status != tasks.Completed || string(got.Outcome.Result) != `{}` || got.Running {
			t.Errorf("at its end it is %+v", got)
		}
		if task.Begin(func() {}) || task.Cancel() {
			t.Error("an ended task can be begun, or cancelled")
		}
		if store.Find(got.ID, "ben") != nil || store.Find(got.ID, "ana") != task {
			t.Error("another owner finds it, or its own does not")
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if store.Find(got.ID, "ana") != nil {
			t.Error("it is stored for longer than 15 minutes after its end")
		}
	})
}

func TestTask_WaitsForAnotherApprovalWhenItsCallWasNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		task := store.Add(callOf("ana", 100), "a-1", inAnHour())
		task.Begin(func() {})
		if !task.Wait("a-2", time.Now().Add(3*time.Hour)) {
			t.Fatal("it has ended")
		}
		if approval, _ := task.AwaitedApproval(); approval != "a-2" || !store.IsAwaited("a-2", nil) || store.IsAwaited("a-2", task) || store.IsAwaited("a-1", nil) {
			t.Errorf("it waits for %q", approval)
		}
		id := task.Report().ID
		time.Sleep(3*time.Hour + 14*time.Minute)
		if store.Find(id, "ana") == nil {
			t.Error("it is removed before its new approval has expired")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if store.Find(id, "ana") != nil {
			t.Error("it is stored for longer than 15 minutes after its approval has expired")
		}
	})
}

func TestTask_Cancel(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	waiting := store.Add(callOf("ana", 100), "a-1", inAnHour())
	if !waiting.Cancel() || waiting.Cancel() || waiting.Report().Status != tasks.Cancelled || waiting.Begin(func() {}) {
		t.Error("a waiting task is not cancelled once, for good")
	}
	stopped := 0
	running := store.Add(callOf("ana", 100), "a-1", inAnHour())
	running.Begin(func() { stopped++ })
	for range 2 {
		if running.Cancel() {
			t.Error("a task whose call is being made has ended by its cancellation")
		}
	}
	if stopped != 1 || running.Report().Status != tasks.Working {
		t.Errorf("the call was stopped %d times, and the task is %s", stopped, running.Report().Status)
	}
	running.End(tasks.Completed, tasks.Outcome{Result: jsontext.Value(`{}`)})
	if running.Report().Status != tasks.Completed {
		t.Error("a call that was made all the same is not its task's outcome")
	}
	unsent := store.Add(callOf("ana", 100), "a-1", inAnHour())
	unsent.Begin(func() {})
	unsent.Cancel()
	if unsent.Wait("a-1", time.Time{}) || unsent.Report().Status != tasks.Cancelled {
		t.Error("a task that was cancelled while its call was tried waits again")
	}
}

func TestStore_RemovingATaskStopsItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		newStore(t).Add(callOf("ana", 100), "a-1", time.Time{}).Begin(cancel)
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("the call continues after its task was removed")
		}
	})
}

// Case N2. The number of a caller's tasks is limited, and so is the memory that they use.
func TestStore_TasksOfACallerAreLimited(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	ana, ben := callOf("ana", 100), callOf("ben", 100)
	var first *tasks.Task
	for i := range 64 {
		task := store.Add(ana, "a-1", inAnHour())
		if task == nil {
			t.Fatalf("task %d does not fit", i)
		}
		if first == nil {
			first = task
		}
	}
	if store.HasCapacity(&ana.Holder, "ana") || store.Add(ana, "a-1", inAnHour()) != nil {
		t.Error("one caller has 65 tasks")
	}
	if !store.HasCapacity(&ben.Holder, "ben") || store.Add(ben, "a-1", inAnHour()) == nil {
		t.Error("another caller has none")
	}
	first.End(tasks.Failed, tasks.Outcome{Error: jsontext.Value(`{}`)})
	if store.HasCapacity(&ana.Holder, "ana") {
		t.Error("a task is removed whose client has not got its end")
	}
	id := first.Report().ID
	if !store.HasCapacity(&ana.Holder, "ana") || store.Add(ana, "a-1", inAnHour()) == nil || store.Find(id, "ana") != nil {
		t.Error("a task whose client has got its end is not removed for another")
	}
	large := callOf("cyd", tasks.MaxMessage)
	for number := 0; store.Add(large, "a-1", inAnHour()) != nil; number++ {
		if number == 15 {
			t.Fatal("16 tasks of 1 MiB fit into 16 MiB, in which each takes 64 KiB more")
		}
	}
	for range 64 {
		store.Add(large, "a-1", inAnHour())
	}
	if !store.HasCapacity(&large.Holder, "cyd") {
		t.Error("tasks that did not fit are counted")
	}
}

// Case I4. The client's id for a server's task is valid only for the task's owner, and is always the same.
func TestIDs_AreValidOnlyForTheirOwner(t *testing.T) {
	t.Parallel()
	ids, err := tasks.NewIDs([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	id := ids.ForClient([]byte("ana"), "t-1")
	if id != ids.ForClient([]byte("ana"), "t-1") || strings.Contains(id, "t-1") {
		t.Errorf("it is %s", id)
	}
	if got, ok := ids.ForServer([]byte("ana"), id); got != "t-1" || !ok {
		t.Errorf("its owner's is %q, %t", got, ok)
	}
	if ids.ForClient([]byte("ben"), "t-1") == id || ids.ForClient([]byte("ana"), "t-2") == id {
		t.Error("two tasks have one id")
	}
	other, err := tasks.NewIDs([]byte("another"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := other.ForServer([]byte("ana"), id); ok {
		t.Error("it counts under another secret")
	}
	for _, bad := range []string{"", "t-1", id + "A", id[1:], id + "=", strings.ToLower(id)} {
		if got, ok := ids.ForServer([]byte("ana"), bad); ok {
			t.Errorf("%q is %q", bad, got)
		}
	}
	if got, ok := ids.ForServer([]byte("ben"), id); ok {
		t.Errorf("another's is %q", got)
	}
}
