package session_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func TestCalls_CancelAffectsCallsWithTheKey(t *testing.T) {
	t.Parallel()
	var sess session.Session
	sess.Calls.Cancel("1") // no call has this id
	given := make(map[string]context.Context)
	begin := func(key, name string) *session.Call {
		ctx, call := sess.BeginCall(t.Context(), key, nil)
		given[name] = ctx
		return call
	}
	begin("1", "first")
	begin("1", "the same id again")
	begin("2", "another id")
	begin("1", "answered meanwhile").End()
	delete(given, "answered meanwhile")
	if sess.Calls.Cancel("1") {
		t.Error("GiveUp reports an unsent call as sent")
	}
	got := make(map[string]bool)
	for name, ctx := range given {
		got[name] = ctx.Err() != nil
	}
	if diff := cmp.Diff(map[string]bool{"first": true, "the same id again": true, "another id": false}, got); diff != "" {
		t.Errorf("given up (-want +got):\n%s", diff)
	}
	begin("1", "sent").MarkSent(func(error) {})
	if !sess.Calls.Cancel("1") || sess.Calls.Cancel("2") {
		t.Error("GiveUp does not distinguish sent and unsent calls")
	}
}

// The gateway waits 3 s for the response to a cancelled call. It does not wait longer, because the server need not send
// a response.
func TestCall_CancelledCallWaitsForLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sess session.Session
		_, call := sess.BeginCall(t.Context(), "1", nil)
		under, leave := context.WithCancelCause(t.Context())
		call.MarkSent(leave)
		sess.Calls.Cancel("1")
		time.Sleep(3*time.Second - 1)
		if synctest.Wait(); under.Err() != nil {
			t.Error("a late answer is not awaited")
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); !errors.Is(context.Cause(under), upstream.ErrCancelled) {
			t.Errorf("it ends with %v", context.Cause(under))
		}
	})
}
