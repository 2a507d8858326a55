package mcpserver

import (
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

const (
	// maxHookCalls limits how many calls the gateway remembers for one caller. maxHookCallers limits for how many
	// callers it remembers calls.
	maxHookCalls   = 1000
	maxHookCallers = 100
	// repeatWindow is how long after a verdict an event with the same id receives the same verdict. All hooks of a
	// client send their events for a call at about the same time. The window is short, so that the client can't use an
	// approval again for a later call.
	repeatWindow = 30 * time.Second
	// permissionWindow is how long after an approval Codex may ask a second time about the approved call.
	permissionWindow = 10 * time.Minute
)

// hookMemories contains a separate memory for each caller, so that no caller can displace another caller's calls. It is
// safe for concurrent use.
type hookMemories struct {
	mu      sync.Mutex
	callers *lru.Cache[[sha256.Size]byte, *hookMemory]
}

func newHookMemories() *hookMemories {
	return &hookMemories{callers: lru.New[[sha256.Size]byte](maxHookCallers, maxHookCallers, func(*hookMemory) int { return 1 })}
}

// of returns the memory for a caller.
func (m *hookMemories) of(c httpserver.Caller) *hookMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := digest(callerOf(c)...)
	memory, ok := m.callers.Get(key)
	if !ok {
		memory = newHookMemory()
		m.callers.Put(key, memory)
	}
	return memory
}

// hookMemory remembers the tool calls that one caller's hooks have asked about. It is safe for concurrent use.
type hookMemory struct {
	mu sync.Mutex
	// calls contains the most recent calls that have an id.
	calls *lru.Cache[[sha256.Size]byte, *hookCall]
	// approved contains the calls that people have approved. The client may ask about each of these calls a second
	// time.
	approved *lru.Cache[[sha256.Size]byte, *approvedCall]
}

// hookCall is a call with an id. The fields verdict and answered are set before done is closed.
type hookCall struct {
	content  [sha256.Size]byte
	done     chan struct{}
	verdict  hookVerdict
	answered time.Time
}

// isOver reports whether the verdict is so old that an event with the same id no longer receives it.
func (c *hookCall) isOver() bool {
	select {
	case <-c.done:
		return time.Since(c.answered) >= repeatWindow
	default:
		return false
	}
}

type approvedCall struct {
	at    time.Time
	taken atomic.Bool
}

func newHookMemory() *hookMemory {
	return &hookMemory{
		calls:    lru.New[[sha256.Size]byte](maxHookCalls, maxHookCalls, func(*hookCall) int { return 1 }),
		approved: lru.New[[sha256.Size]byte](maxHookCalls, maxHookCalls, func(*approvedCall) int { return 1 }),
	}
}

// once returns the verdict on an event. Several hooks may be registered for one call and send events with the same id.
// once calls judge only for the first of these events, and returns the same verdict for the others. For an event
// without an id, once always calls judge.
func (m *hookMemory) once(ctx context.Context, c httpserver.Caller, client string, event hookEvent, judge func() hookVerdict) hookVerdict {
	if event.ID == "" {
		return judge()
	}
	key := digest(append(callerOf(c), client, event.Session, event.ID)...)
	content := digest(event.Tool, string(event.Input))
	call, isFirst := m.begin(key, content)
	if !isFirst {
		if call.content != content {
			return denied(&refusal.Refusal{Code: commonv1.Code_CODE_ID_INVALID, Message: errReused.Error() + "."})
		}
		select {
		case <-call.done:
			return call.verdict
		case <-ctx.Done():
			return denied(&refusal.Refusal{Code: commonv1.Code_CODE_APPROVAL_PENDING})
		}
	}
	call.verdict = denied(&refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}) // remains set if judge panics
	defer func() {
		call.answered = time.Now()
		close(call.done)
	}()
	call.verdict = judge()
	return call.verdict
}

// begin returns the call with this key. If there is no such call, begin creates it, and isFirst is true.
func (m *hookMemory) begin(key, content [sha256.Size]byte) (call *hookCall, isFirst bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if call, ok := m.calls.Get(key); ok && !call.isOver() {
		return call, false
	}
	call = &hookCall{content: content, done: make(chan struct{})}
	m.calls.Put(key, call)
	return call, true
}

func (m *hookMemory) putApproved(key [sha256.Size]byte) {
	m.approved.Put(key, &approvedCall{at: time.Now()})
}

// takeApproved reports whether a person has approved a call. For each approval, it returns true only once.
func (m *hookMemory) takeApproved(key [sha256.Size]byte) bool {
	call, ok := m.approved.Get(key)
	return ok && time.Since(call.at) < permissionWindow && !call.taken.Swap(true)
}
