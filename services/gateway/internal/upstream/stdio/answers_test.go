//go:build unix

package stdio_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// atOnce is a duration that is much shorter than the timeout of a call in these tests.
const atOnce = patience / 3

// raw calls a tool that makes the fake server write the given line as its whole answer. The text ID in the line stands
// for the request id that the server receives.
func (s session) raw(line string) (upstream.Answer, time.Duration, error) {
	begin := time.Now()
	answer, err := s.try(1, "raw", map[string]string{"line": line})
	return answer, time.Since(begin), err
}

// Case U2. If a server's answer is unusable, the call ends immediately. The error contains the reason.
func TestRequest_UnusableAnswerEndsItsCallAtOnce(t *testing.T) {
	t.Parallel()
	const pair = "the message contains half of a surrogate pair"
	for name, tt := range map[string]struct{ line, want string }{
		"no UTF-8":                     {`{"jsonrpc":"2.0","id":ID,"result":{"a":"caf<E9>"}}`, "the message is not valid UTF-8"},
		"no UTF-8, id after it":        {`{"jsonrpc":"2.0","result":{"a":"caf<E9>"},"id":ID}`, "the message is not valid UTF-8"},
		"no UTF-8 under a text":        {`{"jsonrpc":"2.0","id":"ID","result":{"a":"<E9>"}}`, "the message is not valid UTF-8"},
		"a surrogate in a key":         {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"\ud83d":1}]}}`, pair},
		"a surrogate in _meta":         {`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"_meta":{"a":"\ud83d"}}}`, pair},
		"a surrogate in requestState":  {`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"requestState":"\ud83d"}}`, pair},
		"a surrogate in nextCursor":    {`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"nextCursor":"\ud83d"}}`, pair},
		"a surrogate in an error":      {`{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"\ud83d"}}`, pair},
		"a surrogate in tools":         {`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"tools":[{"name":"\ud83d"}]}}`, pair},
		"a surrogate elsewhere":        {`{"jsonrpc":"2.0","id":ID,"x":"\ud83d","result":{"content":[]}}`, pair},
		"a surrogate, and a fault":     {`{"jsonrpc":"2.0","id":ID,"result":{"content":["\ud83d"],"a":1,"a":2}}`, pair},
		"the same key twice":           {`{"jsonrpc":"2.0","id":ID,"result":{"a":1,"a":2}}`, "twice"},
		"the same id twice":            {`{"jsonrpc":"2.0","id":ID,"id":ID,"result":{}}`, "twice"},
		"a line that was cut":          {`{"jsonrpc":"2.0","id":ID,"result":{"a":"line`, "the text ends inside the value"},
		"another version":              {`{"jsonrpc":"1.0","id":ID,"result":{}}`, `"jsonrpc" is not "2.0"`},
		"no version":                   {`{"id":ID,"result":{}}`, `"jsonrpc" is not "2.0"`},
		"nothing":                      {`{"jsonrpc":"2.0","id":ID}`, "must have exactly one of method, result and error"},
		"null":                         {`{"jsonrpc":"2.0","id":ID,"result":null}`, "a value that must be an object is not one"},
		"a text":                       {`{"jsonrpc":"2.0","id":ID,"result":"done"}`, "a value that must be an object is not one"},
		"a null result and an error":   {`{"jsonrpc":"2.0","id":ID,"result":null,"error":{"code":1,"message":""}}`, "a value that must be an object is not one"},
		"error: null alone":            {`{"jsonrpc":"2.0","id":ID,"error":null}`, "a value that must be an object is not one"},
		"both":                         {`{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":""}}`, "must have exactly one of"},
		"error: false":                 {`{"jsonrpc":"2.0","id":ID,"result":{},"error":false}`, "a value that must be an object is not one"},
		"a batch":                      {`[{"jsonrpc":"2.0","id":ID,"result":{}}]`, "the message is not an object"},
		"a byte order mark, again":     {`<BOM>{"jsonrpc":"2.0","id":ID,"result":{}}`, "a byte order mark precedes the message"},
		"the id as a fraction":         {`{"jsonrpc":"2.0","id":ID.0,"result":{}}`, "in another form"},
		"the id as a padded text":      {`{"jsonrpc":"2.0","id":"0ID","result":{}}`, "in another form"},
		"the id as a text with spaces": {`{"jsonrpc":"2.0","id":" ID","result":{}}`, "in another form"},
		"an error with id null":        {`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`, "an error without the id"},
		"an error without an id":       {`{"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}`, "an error without the id"},
		"the gateway's own code":       {`{"jsonrpc":"2.0","id":ID,"error":{"code":-31403,"message":"?"}}`, "the error code of the gateway's own refusals"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRig(t, "good", nil).open(t, ana)
			answer, took, err := s.raw(tt.line)
			if !errors.Is(err, upstream.ErrNoAnswer) || errors.Is(err, upstream.ErrNeverSent) || answer.Message != nil || took > atOnce {
				t.Fatalf("after %s: %+v, %v", took, answer, err)
			}
			if why := upstream.PublicReason(answer, err); !strings.Contains(why, tt.want) {
				t.Errorf("it says %q, want %q in it", why, tt.want)
			}
			s.call(2, "info", nil) // the process continues
		})
	}
}

// Some servers write malformed answers of known forms. The gateway repairs and accepts them.
func TestRequest_UnusualFormsOfAnswersAreRepaired(t *testing.T) {
	t.Parallel()
	const want = `{"content":[{"type":"text","text":"a"}]}`
	for name, tt := range map[string]struct{ line, want string }{
		"half of a pair":                {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"text":"a\ud83d"}]}}`, `{"content":[{"text":"a\ufffd"}]}`},
		"the other half":                {`{"jsonrpc":"2.0","result":{"content":[{"text":"\ude00a"}]},"id":ID}`, `{"content":[{"text":"\ufffda"}]}`},
		"half before a pair":            {`{"jsonrpc":"2.0","id":ID,"result":{"content":["\ud83d\ud83d\ude00\\ud83d"]}}`, `{"content":["\ufffd\ud83d\ude00\\ud83d"]}`},
		"half of structured content":    {`{"jsonrpc":"2.0","id":ID,"result":{"structuredContent":{"a":{"b":["\uDFFF"]}}}}`, `{"structuredContent":{"a":{"b":["\ufffd"]}}}`},
		"error: null at the end":        {`{"jsonrpc":"2.0","id":ID,"result":` + want + ` , "error" : null }`, want},
		"error: null in front":          {`{"error":null,"jsonrpc":"2.0","id":ID,"result":` + want + `}`, want},
		"error: null between":           {`{"jsonrpc":"2.0","id":ID,"error":null,"result":` + want + `}`, want},
		"the id as text":                {`{"jsonrpc":"2.0","id":"ID","result":` + want + `}`, want},
		"the id as text, error: null":   {`{"jsonrpc":"2.0","id":"ID","error":null,"result":` + want + `}`, want},
		"the id as text, and half":      {`{"jsonrpc":"2.0","id":"ID","result":{"content":["\ud83d"]}}`, `{"content":["\ufffd"]}`},
		"error: null, and the gateways": {`{"jsonrpc":"2.0","id":ID,"result":{"a":1,"_meta":{"dev.sluice/x":1}},"error":null}`, `{"a":1,"_meta":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, _, err := newRig(t, "good", nil).open(t, ana).raw(tt.line)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(answer.Message.Result.Of(answer.Message.Raw)); got != tt.want {
				t.Errorf("the result is %s, want %s", got, tt.want)
			}
			if id := string(answer.Message.ID.Of(answer.Message.Raw)); id != "1" || answer.Message.Error.Present() || strings.Contains(string(answer.Message.Raw), "null") {
				t.Errorf("the answer is %s", answer.Message.Raw)
			}
		})
	}
	t.Run("a byte order mark before everything", func(t *testing.T) {
		t.Parallel()
		newRig(t, "marked", nil).open(t, ana).call(1, "info", nil)
	})
}

// Case U2. A server sends an error without an id. The error does not end a call if other calls are in flight, or if
// another principal's request may have caused the error.
func TestRequest_ErrorWithoutIDEndsOnlyASingleCall(t *testing.T) {
	t.Parallel()
	const line = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`
	t.Run("another in flight", func(t *testing.T) {
		t.Parallel()
		s := newRig(t, "good", nil).open(t, ana)
		held := s.begin(1, "hold", map[string]string{"key": "first"})
		for s.call(2, "info", nil)["held"] != "first" {
		}
		s.waits(s.begin(3, "raw", map[string]string{"line": line}))
		s.call(4, "hold", map[string]string{"key": "now"})
		if got := <-held; got.err != nil {
			t.Error(got.err)
		}
	})
	t.Run("of a shared process that may work on another", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
		s, other := r.open(t, ana), r.open(t, principal.Key{Tenant: "t", Subject: "bob"})
		begun := other.begin(1, "silence", nil)
		for s.call(1, "info", nil)["cancelled"] == "" {
			other.notify(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		}
		<-begun
		s.waits(s.begin(3, "raw", map[string]string{"line": line}))
	})
}

// waits checks that a call to the tool raw keeps waiting although the process has written a line in response to the
// call.
func (s session) waits(call <-chan outcome) {
	s.t.Helper()
	for s.call(9, "info", nil)["raws"] != "1" {
	}
	s.call(9, "info", nil)
	select {
	case got := <-call:
		s.t.Errorf("the call ended with %v", got.err)
	default:
	}
}
