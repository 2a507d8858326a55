package dispatch_test

import (
	"errors"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func TestCallback_TakesMessagesOfItsSize(t *testing.T) {
	t.Parallel()
	var got []string
	sink := dispatch.NewCallback(func(message []byte) { got = append(got, string(message)) })
	large := make([]byte, dispatch.MaxCallback+1)
	for _, parts := range [][][]byte{{[]byte("a"), []byte("b")}, {}, {large}, {large[1:]}} {
		if err := sink.Send(upstream.Event{}, parts...); err != nil {
			t.Error(err)
		}
	}
	if len(got) != 2 || got[0] != "ab" || len(got[1]) != dispatch.MaxCallback || !sink.Accepts() || sink.IsOpen() {
		t.Errorf("%d messages came", len(got))
	}
	if none := new(dispatch.Callback); none.Accepts() || !errors.Is(none.Send(upstream.Event{}, []byte("a")), dispatch.ErrNoStream) {
		t.Error("the zero value takes messages")
	}
}

func TestResponse_CopyIsBounded(t *testing.T) {
	t.Parallel()
	parts := [][]byte{[]byte("ab"), []byte("c")}
	whole, tooLarge := dispatch.Response{Body: parts}.Copy(3)
	parts[0][0] = 'x'
	if string(whole) != "abc" || tooLarge {
		t.Errorf("%q, %t", whole, tooLarge)
	}
	if whole, tooLarge := (dispatch.Response{Body: parts}).Copy(2); whole != nil || !tooLarge {
		t.Errorf("%q, %t", whole, tooLarge)
	}
}
