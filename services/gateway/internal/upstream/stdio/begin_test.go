//go:build unix

package stdio_test

import (
	"errors"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The call may not begin when its process is ready. The process receives nothing, and the next call succeeds.
func TestRequest_IsNotWrittenWhenItMayNotBegin(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	before := s.call(1, "info", nil)
	withheld := errors.New("withheld")
	req := toolCall(2, "info", nil)
	req.Begin = func() error { return withheld }
	answer, err := s.conn.Request(t.Context(), req, nil)
	if !errors.Is(err, withheld) || !errors.Is(err, upstream.ErrNeverSent) || !errors.Is(err, upstream.ErrWithheld) || answer.Message != nil {
		t.Fatalf("%+v, %v", answer, err)
	}
	begun := 0
	req = toolCall(3, "info", nil)
	req.Begin = func() error { begun++; return nil }
	if _, err := s.conn.Request(t.Context(), req, nil); err != nil || begun != 1 {
		t.Errorf("begin was called %d times: %v", begun, err)
	}
	if after := s.call(4, "info", nil); after["pid"] != before["pid"] {
		t.Errorf("the process has changed: %v, %v", before, after)
	}
}
