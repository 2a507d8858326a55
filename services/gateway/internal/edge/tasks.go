package edge

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

const (
	// taskPrefix begins the ids of the gateway's own tasks.
	taskPrefix = "sluice-task."
	// maxTasks is how many there may be, and maxTasksEach how many of one caller on one server.
	maxTasks     = 10_000
	maxTasksEach = 32
	// taskKept is for how long a task is kept beyond the time in which people may decide on its call.
	taskKept = time.Hour
	// taskPoll is how often clients are told to ask.
	taskPoll = 2 * time.Second
)

// task is a call that waits for people while its client asks how it stands. The gateway makes it once,
// when its client asks and finds that they have approved it: one that nobody asks about does not run.
// It lives in this gateway alone; its approval outlives it. It is safe for concurrent use.
type task struct {
	id     string
	owner  string
	server string
	// head and message are the call as it came, which is held in room.
	head    http.Header
	message []byte
	room    *room.Holding
	created time.Time
	ttl     time.Duration

	mu sync.Mutex
	// approval is what it waits for, while it waits.
	approval string
	updated  time.Time
	status   string
	cancel   context.CancelFunc // of the call while it is made
	// result or fault is what came of it, raw: one of them, once it is completed or failed.
	result, fault jsontext.Value
}

// The states of a task (MCP Tasks extension, Task Status).
const (
	taskWorking   = "working"
	taskCompleted = "completed"
	taskFailed    = "failed"
	taskCancelled = "cancelled"
)

// tasks are those that are kept, by their ids. It is safe for concurrent use.
type tasks struct {
	mu sync.Mutex
	by map[string]*task
	of map[string]int // how many by their owners
}

func newTasks() tasks { return tasks{by: make(map[string]*task), of: make(map[string]int)} }

// keep keeps a task for its time, and tells whether there is room for it.
func (s *tasks) keep(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.by) >= maxTasks || s.of[t.owner] >= maxTasksEach {
		return false
	}
	s.by[t.id] = t
	s.of[t.owner]++
	time.AfterFunc(t.ttl, func() { s.drop(t) })
	return true
}

func (s *tasks) drop(t *task) {
	s.mu.Lock()
	delete(s.by, t.id)
	if s.of[t.owner]--; s.of[t.owner] == 0 {
		delete(s.of, t.owner)
	}
	s.mu.Unlock()
	t.finish(taskCancelled, nil, nil)
	t.room.Close()
}

// find returns a task of this owner's; nil where there is none.
func (s *tasks) find(id, owner string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.by[id]; t != nil && t.owner == owner {
		return t
	}
	return nil
}

// mayBeTask tells whether the request at hand is a call that may be answered with a task. One that
// answers what its server has asked, or that waits already, goes on as it has begun.
func (x *exchange) mayBeTask() bool {
	return x.modern != nil && x.tasks && x.msg.Method == mcp.MethodToolsCall && !x.msg.InputResponses.Present() && x.leg == leg{}
}

// becomesTask answers a call that waits for people with a task, and tells whether it has.
func (x *exchange) becomesTask(ctx context.Context, out *writer, why *refusal.Refusal) bool {
	waits := why.Approval
	if why.Code != commonv1.Code_CODE_APPROVAL_PENDING || waits == nil {
		return false
	}
	t := &task{
		id: taskPrefix + rand.Text(), owner: string(x.owner()), server: x.server, head: x.r.Header.Clone(), message: x.msg.Raw,
		created: time.Now(), updated: time.Now(), status: taskWorking, approval: waits.ID, room: x.has.Answer.Beside(),
	}
	t.head.Del("Authorization") // who asks how it stands makes it
	t.ttl = max(0, time.Until(waits.Expires)) + taskKept
	if !t.room.Add(len(t.message)) || !x.ownTasks.keep(t) {
		t.room.Close()
		return false
	}
	t.room.Keep(len(t.message))
	said := t.says()
	said.Type = mcp.ResultTask
	said.Meta = why.Meta()
	x.answerTask(ctx, out, said)
	return true
}

// stands brings a task up to date: where people have decided, its call is made.
func (x *exchange) stands(ctx context.Context, t *task) {
	t.mu.Lock()
	approval, waits := t.approval, t.status == taskWorking && t.cancel == nil
	t.mu.Unlock()
	if !waits {
		return
	}
	a, refused := x.deps.Pipeline.Standing(ctx, x.acting(), approval)
	if refused != nil && refused.Code == commonv1.Code_CODE_APPROVAL_UNAVAILABLE || a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING || !x.visits.enter() {
		return // the gateway that stops lets it wait
	}
	making, cancel := context.WithCancel(context.Background())
	t.mu.Lock()
	begins := t.status == taskWorking && t.cancel == nil
	if begins {
		t.cancel, t.updated = cancel, time.Now()
	}
	t.mu.Unlock()
	if !begins { // somebody else has made it
		cancel()
		x.visits.leave()
		return
	}
	by := x.caller
	go func() {
		defer x.visits.leave()
		defer cancel()
		x.makes(making, by, t, approval)
	}()
}

// makes makes the call of a task for this caller of its owner's, who has waited for this approval.
func (e *Edge) makes(ctx context.Context, by caller, t *task, approval string) {
	in := &visitor{errand: Errand{Principal: by.principal, Server: t.server, Message: t.message, Hold: new(time.Duration)}, header: make(http.Header), resumes: approval}
	r := (&http.Request{
		Method: http.MethodPost, Header: t.head, Body: io.NopCloser(bytes.NewReader(t.message)), ContentLength: int64(len(t.message)),
	}).WithContext(ctx)
	r.SetPathValue("server", t.server)
	by.inside, by.stale = in, by.stale || by.revoked()
	e.post(in, r, by)
	in.take()
	if why := in.done.Refusal; why != nil && why.Code == commonv1.Code_CODE_APPROVAL_PENDING && why.Approval != nil { // people begin anew
		t.waits(why.Approval.ID)
		return
	}
	answer, err := gate.ReadAnswer(in.done.Answer, gate.AnswerLimits())
	switch {
	case err != nil || answer.Kind != gate.Response:
		t.finish(taskFailed, nil, jsontext.Value(`{"code":-32603,"message":"The call was made, and its answer was too large or could not be kept."}`))
	case !t.room.Add(len(in.done.Answer)):
		t.finish(taskFailed, nil, jsontext.Value(`{"code":-32603,"message":"The call was made, and there was no room for its answer."}`))
	case answer.Error.Present():
		t.finish(taskFailed, nil, answer.Error.Of(answer.Raw))
	default:
		t.finish(taskCompleted, answer.Result.Of(answer.Raw), nil)
	}
}

// waits has a task wait for people again.
func (t *task) waits(approval string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.approval, t.cancel, t.updated = approval, nil, time.Now()
}

// finish ends a task that has not ended, and its call where that is being made.
func (t *task) finish(status string, result, fault jsontext.Value) (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status != taskWorking {
		return false
	}
	if t.cancel != nil {
		t.cancel()
	}
	t.status, t.result, t.fault, t.updated = status, result, fault, time.Now()
	return true
}

// isOwnTask tells whether the request at hand is about a task of the gateway's own.
func (x *exchange) isOwnTask() bool { return x.modern != nil && strings.HasPrefix(x.msg.TaskID, taskPrefix) }
