package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

func holding(t *testing.T) *limits.Memory {
	t.Helper()
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	return all.Open(new(limits.Owner))
}

// messagesAfter returns a stream's messages after the event with the given id, up to the answer or the last stored
// message.
func messagesAfter(t *testing.T, a *session.ReplayStreams, after string) (out []string, ok bool) {
	t.Helper()
	s, next, ok := a.Resume(after, "ana")
	if !ok {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for ; ; next++ {
		id, message, err := s.Next(ctx, next)
		if err != nil || id == "" {
			return out, true
		}
		out = append(out, id+" "+string(message))
	}
}

// A client resumes a stream after the last event that it has received. It receives the messages that were added since
// then, and no messages of other streams.
func TestReplay_ClientResumesAfterItsLastEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a session.ReplayStreams
		first, second := a.Begin("s", "ana", holding(t)), a.Begin("s", "ana", holding(t))
		first.Add([]byte("o"), []byte("ne"))
		if id, taken, stored := second.Add([]byte("other")); id != "sluice-2-1" || taken || !stored {
			t.Errorf("the second stream's first is %s, %v, %v", id, taken, stored)
		}
		if got, ok := messagesAfter(t, &a, first.ID()); !ok || strings.Join(got, ",") != "sluice-1-1 one" {
			t.Errorf("from the beginning: %q, %v", got, ok)
		}
		time.AfterFunc(time.Second/2, func() {
			if _, taken, _ := first.Add([]byte("two")); !taken {
				t.Error("the stream does not know that its client has resumed elsewhere")
			}
			first.End(true)
		})
		if got, ok := messagesAfter(t, &a, "sluice-1-1"); !ok || strings.Join(got, ",") != "sluice-1-2 two" {
			t.Errorf("after the first: %q, %v", got, ok)
		}
		if !first.IsUnrecorded() || second.IsUnrecorded() {
			t.Error("the stream does not know that its outcome is not on record")
		}
		if _, _, ok := a.Resume("sluice-1-1", "ben"); ok {
			t.Error("another owner resumes the stream")
		}
		for _, id := range []string{"sluice-1-3", "sluice-1--1", "sluice-1-01", "sluice-1-1 ", "sluice-3-0", "sluice-", "sluice-x-1", "1-1"} {
			if got, ok := messagesAfter(t, &a, id); ok {
				t.Errorf("%s is an event, behind which is %q", id, got)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, ok := messagesAfter(t, &a, "sluice-1-1"); ok {
			t.Error("a stream that ended a minute ago is remembered")
		}
		if got, ok := messagesAfter(t, &a, "sluice-2-0"); !ok || len(got) != 1 {
			t.Errorf("one that has not ended is forgotten: %q", got)
		}
	})
}

// Case X3. A session stores a limited number of streams, messages and bytes. A client cannot resume after an event that
// is no longer stored.
func TestReplay_StreamsMessagesAndBytesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a session.ReplayStreams
		s := a.Begin("s", "ana", holding(t))
		for range 300 {
			s.Add([]byte("x"))
		}
		if _, ok := messagesAfter(t, &a, "sluice-1-43"); ok {
			t.Error("a message before 256 others is remembered")
		}
		if got, ok := messagesAfter(t, &a, "sluice-1-44"); !ok || len(got) != 256 {
			t.Errorf("of 256 messages %d are remembered", len(got))
		}
		s.Add(make([]byte, 1<<20))
		if got, ok := messagesAfter(t, &a, "sluice-1-300"); !ok || len(got) != 1 {
			t.Errorf("after a large message %d are remembered", len(got))
		}
		if _, _, stored := s.Add(make([]byte, 1<<20+1)); stored {
			t.Error("a message that is too large is remembered")
		}
		s.End(false)
		if _, ok := messagesAfter(t, &a, "sluice-1-300"); ok {
			t.Error("a message that is too large can be read")
		}
		waiting, next, ok := a.Resume("sluice-1-302", "ana")
		if !ok {
			t.Fatal("the stream has no end")
		}
		if id, _, err := waiting.Next(t.Context(), next); id != "" || err != nil {
			t.Errorf("after the end is %q, %v", id, err)
		}
		if _, _, err := waiting.Next(t.Context(), 1); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a forgotten message: %v", err)
		}
		for range 15 {
			a.Begin("s", "ana", holding(t))
		}
		if _, ok := messagesAfter(t, &a, "sluice-1-302"); !ok {
			t.Error("the first of 16 streams is forgotten")
		}
		if a.Begin("s", "ana", holding(t)) == nil {
			t.Error("a stream that has ended is not replaced")
		}
		if _, ok := messagesAfter(t, &a, "sluice-1-302"); ok {
			t.Error("17 streams are remembered")
		}
		if a.Begin("s", "ana", holding(t)) != nil {
			t.Error("a stream that has not ended is replaced")
		}
		a.Close()
		if _, ok := messagesAfter(t, &a, "sluice-2-0"); ok || a.Begin("s", "ana", holding(t)) != nil {
			t.Error("a closed session remembers a stream")
		}
		synctest.Wait()
	})
}
