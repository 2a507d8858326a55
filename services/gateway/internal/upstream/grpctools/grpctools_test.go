package grpctools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/grpctools"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

var who = principal.Key{Tenant: "t", Subject: "s"}

// TestList_ContainsMethodsWithTheOption checks that methods with the option are listed as tools, with schemas that
// follow their messages and validation rules.
func TestList_ContainsMethodsWithTheOption(t *testing.T) {
	t.Parallel()
	conn := open(t, transport(t, newNotes(t).addr, nil))
	answer, err := conn.Request(within(t), request(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Tools []struct {
			Name, Title, Description  string
			InputSchema, OutputSchema struct {
				Type                 string
				Properties           map[string]json.RawMessage
				Required             []string
				AdditionalProperties *bool
			}
			Annotations map[string]bool
		}
	}
	if err := json.Unmarshal(answer.Message.Result.Of(answer.Message.Raw), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 2 || list.Tools[0].Name != "note_write" || list.Tools[1].Name != "note_watch" {
		t.Fatalf("lists %+v", list.Tools)
	}
	write := list.Tools[0]
	if write.Title != "Write" || write.Description != "Writes a note." || len(write.Annotations) != 1 || write.Annotations["destructiveHint"] {
		t.Errorf("note_write is %+v", write)
	}
	if fmt.Sprint(write.InputSchema.Required) != "[noteId]" || write.InputSchema.AdditionalProperties == nil || *write.InputSchema.AdditionalProperties {
		t.Errorf("its input is %+v", write.InputSchema)
	}
	for name, want := range map[string]string{
		"noteId": `{"description":"Which note.","minLength":1,"pattern":"^[a-z]{1,8}$","type":"string"}`,
		"body":   `{"type":"string"}`,
		"kind":   `{"enum":["short_note","long"],"type":"string"}`,
		"tags":   `{"items":{"type":"string"},"maxItems":3,"type":"array"}`,
		"at":     `{"format":"date-time","type":"string"}`,
		"size":   `{"pattern":"^-?[0-9]{1,19}$","type":"string"}`,
		"extra":  `{"type":"object"}`,
		"data":   `{"contentEncoding":"base64","type":"string"}`,
		"level":  `{"maximum":9,"minimum":1,"type":"integer"}`,
		"done":   `{"type":"boolean"}`,
		"inside": `{"type":"object"}`,
		"weight": `{"type":"number"}`,
		"maybe":  `{"type":"integer"}`,
	} {
		if got := string(write.InputSchema.Properties[name]); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if out := list.Tools[1].OutputSchema; len(out.Properties) != 1 || out.Properties["body"] == nil {
		t.Errorf("note_watch answers %+v, want the body alone", out)
	}
}

// TestCall_InvokesTheMethod checks that the method receives the arguments with their types, and that the method's
// response is returned.
func TestCall_InvokesTheMethod(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	conn := open(t, transport(t, n.addr, map[string]string{"authorization": "Bearer hidden-secret"}, "hidden-secret"))
	arguments := `{"noteId":"abc","body":"hidden-secret é","kind":"short_note","tags":["x","y"],"at":"2026-01-02T03:04:05Z","size":"-12","extra":{"b": 1,"a":[1.50]},"data":"AAE=","level":3,"done":true,"row":4,"weight":1.5,"maybe":7}`
	answer, err := conn.Request(within(t), call(t, "note_write", arguments), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := resultOf(t, answer)
	want := strings.Replace(arguments, "hidden-secret", "[redacted]", 1)
	if !r.IsError && (string(r.StructuredContent) != want || r.Content[0].Text != want) {
		t.Errorf("answers %s\nand %s\nwant %s", r.StructuredContent, r.Content[0].Text, want)
	}
	if string(answer.Message.ID.Of(answer.Message.Raw)) != "7" || r.IsError {
		t.Errorf("answers %s", answer.Message.Raw)
	}
	if got := n.headers.Get("authorization"); len(got) != 1 || got[0] != "Bearer hidden-secret" {
		t.Errorf("the server got the header %q", got)
	}
	if got := n.headers.Get("traceparent"); len(got) != 1 || !strings.HasPrefix(got[0], "00-0123456789abcdef") {
		t.Errorf("the server got the trace %q", got)
	}
}

// Case T5. If another parser could read the arguments differently, the call is refused before it is sent, because the
// policy service may have evaluated other values.
func TestCall_RefusesAmbiguousArguments(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	conn := open(t, transport(t, n.addr, nil))
	for arguments, says := range map[string]string{
		`{}`:                                "/noteId: is missing",
		`{"noteId":"a","note_id":"b"}`:      "/note_id: is not known; the known fields are noteId, body",
		`{"noteId":"a","NoteId":"b"}`:       "/NoteId: is not known",
		`{"noteId":"a","tool":"write"}`:     "/tool: is not known",
		`{"noteId":7}`:                      "/noteId: must be a string",
		`{"noteId":null}`:                   "/noteId: must be a string",
		`{"noteId":"a","level":"3"}`:        "/level: must be a number",
		`{"noteId":"a","level":3.0}`:        "/level: must be a whole number",
		`{"noteId":"a","level":3e0}`:        "/level: must be a whole number",
		`{"noteId":"a","level":3000000000}`: "/level: must be a whole number of 32 bits",
		`{"noteId":"a","size":12}`:          "/size: must be a string of digits",
		`{"noteId":"a","size":"012"}`:       "/size: must be a whole number of 64 bits, without leading zeros",
		`{"noteId":"a","size":"-0"}`:        "/size: must be a whole number of 64 bits, without leading zeros",
		`{"noteId":"a","data":"AA\nE="}`:    "/data: must be base64",
		`{"noteId":"a","maybe":"1"}`:        "/maybe: must be a number",
		`{"noteId":"a","maybe":1e1}`:        "/maybe: must be a whole number",
		`{"noteId":"a","any":{"@type":"type.googleapis.com/google.protobuf.Empty"}}`: "/any: is not offered",
		`{"noteId":"a","size":" 12"}`:                    "/size: must be a whole number",
		`{"noteId":"a","size":"\u0031"}`:                 "/size: must be a whole number",
		`{"noteId":"a","kind":1}`:                        "/kind: must be a string",
		`{"noteId":"a","kind":"KIND_LONG"}`:              "/kind: must be one of short_note, long",
		`{"noteId":"a","kind":"unspecified"}`:            "/kind: must be one of short_note, long",
		`{"noteId":"a","done":"true"}`:                   "/done: must be true or false",
		`{"noteId":"a","tags":"x"}`:                      "/tags: must be an array",
		`{"noteId":"a","tags":[1]}`:                      "/tags/0: must be a string",
		`{"noteId":"a","data":"AAE"}`:                    "/data: must be base64",
		`{"noteId":"a","data":"AAE_"}`:                   "/data: must be base64",
		`{"noteId":"a","extra":"{}"}`:                    "/extra: must be an object",
		`{"noteId":"a","at":"yesterday"}`:                "/at: is not a valid Timestamp",
		`{"noteId":"a","shelf":"s","row":1}`:             "/row: is one of two that exclude each other",
		`{"noteId":"a","inside":{"noteId":"b","x/y":1}}`: "/inside/x~1y: is not known",
		`{"noteId":"a","inside":{}}`:                     "/inside/noteId: is missing",
		`{"noteId":"a","inside":[]}`:                     "/inside: must be an object",
	} {
		answer, err := conn.Request(within(t), call(t, "note_write", arguments), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := resultOf(t, answer)
		if !r.IsError || !strings.Contains(r.Content[0].Text, says) || r.Meta["io.grpc/status"]["code"] != "INVALID_ARGUMENT" {
			t.Errorf("%s answers %s, want %q", arguments, answer.Message.Raw, says)
		}
	}
	if len(n.got) > 0 {
		t.Errorf("the server was sent %v", n.got)
	}
}

// TestCall_PassesProgressBeforeTheAnswer checks that a method that sends a stream of messages is called once, and that
// the messages before the last one become progress notifications.
func TestCall_PassesProgressBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	n.watch = func(_ protoreflect.Message, send func(float64, string) error) error {
		return errors.Join(send(1, "begun"), send(2, ""), send(0, "done"))
	}
	conn := open(t, transport(t, n.addr, nil))
	var progress []string
	answer, err := conn.Request(within(t), call(t, "note_watch", `{"noteId":"a"}`), func(m []byte) { progress = append(progress, string(m)) })
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1,"message":"begun"}}` +
		` {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":2}}]`
	if fmt.Sprint(progress) != want {
		t.Errorf("reported %v, want %v", progress, want)
	}
	if r := resultOf(t, answer); string(r.StructuredContent) != `{"body":"done"}` || r.IsError {
		t.Errorf("answers %s", answer.Message.Raw)
	}
}

// TestCall_ReturnsStatusAsErrorResult checks that a status from the server becomes a tool result that reports an error.
// A call whose outcome is unknown becomes an error.
func TestCall_ReturnsStatusAsErrorResult(t *testing.T) {
	t.Parallel()
	rich, err := status.New(codes.NotFound, "no such note").WithDetails(&errdetails.ErrorInfo{Reason: "NOTE_UNKNOWN", Domain: "notes"})
	if err != nil {
		t.Fatal(err)
	}
	n := newNotes(t)
	conn := open(t, transport(t, n.addr, nil))
	for _, c := range []struct {
		said error
		text string
		code string
	}{
		{rich.Err(), "NOT_FOUND NOTE_UNKNOWN: no such note", "NOT_FOUND"},
		{status.Error(codes.ResourceExhausted, "full"), "RESOURCE_EXHAUSTED: full", "RESOURCE_EXHAUSTED"},
		{status.Error(codes.Internal, ""), "INTERNAL", "INTERNAL"},
	} {
		n.write = func(context.Context, protoreflect.Message) (protoreflect.Message, error) { return nil, c.said }
		answer, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r := resultOf(t, answer); !r.IsError || r.Content[0].Text != c.text || r.Meta["io.grpc/status"]["code"] != c.code || r.StructuredContent != nil {
			t.Errorf("%v answers %s", c.said, answer.Message.Raw)
		}
	}
	for sent, want := range map[error]error{
		status.Error(codes.Unavailable, "away"):      upstream.ErrNoAnswer,
		status.Error(codes.DeadlineExceeded, "slow"): upstream.ErrTimeout,
	} {
		n.write = func(context.Context, protoreflect.Message) (protoreflect.Message, error) { return nil, sent }
		if _, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil); !errors.Is(err, want) {
			t.Errorf("%v is %v, want %v", sent, err, want)
		}
	}
}

func TestCall_ToUnavailableServerIsNeverSent(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	over := transport(t, n.addr, nil)
	conn := open(t, over)
	n.server.Stop()
	// Until the gateway notices that the connection has ended, it may still send a call.
	eventually.Holds(t, "a call is never sent", func() bool {
		_, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil)
		return errors.Is(err, upstream.ErrNeverSent)
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := transport(t, addr, nil).Open(within(t), who, upstream.Initialize("", "test", "1").Request("", nil)); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("a session is %v, want never sent", err)
	}
}

// TestCall_IsCancelledWithItsCaller checks that the gRPC call is cancelled when its caller stops waiting or the session
// is closed.
func TestCall_IsCancelledWithItsCaller(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(cancel context.CancelFunc, conn upstream.Conn){
		"cancelled": func(cancel context.CancelFunc, _ upstream.Conn) { cancel() },
		"closed":    func(_ context.CancelFunc, conn upstream.Conn) { _ = conn.Close(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotes(t)
			began, ended := make(chan bool), make(chan error, 1)
			n.write = func(ctx context.Context, note protoreflect.Message) (protoreflect.Message, error) {
				close(began)
				<-ctx.Done()
				ended <- ctx.Err()
				return note, nil
			}
			conn := open(t, transport(t, n.addr, nil))
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			errs := make(chan error, 1)
			go func() {
				_, err := conn.Request(ctx, call(t, "note_write", `{"noteId":"a"}`), nil)
				errs <- err
			}()
			<-began
			end(cancel, conn)
			if err := <-errs; !errors.Is(err, upstream.ErrNoAnswer) {
				t.Errorf("the call is %v, want no answer", err)
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the server's ended with %v", err)
			}
		})
	}
}

// TestConn_AnswersOtherRequestsItself checks that the transport itself answers or refuses all requests except tool
// calls.
func TestConn_AnswersOtherRequestsItself(t *testing.T) {
	t.Parallel()
	conn := open(t, transport(t, newNotes(t).addr, nil))
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"x","method":"ping"}`:                                               `{"jsonrpc":"2.0","id":"x","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`:                                         `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"a gRPC server has only tools"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"note_hidden"}}`:           `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"unknown tool: note_hidden"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"Hidden","arguments":{}}}`: `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"unknown tool: Hidden"}}`,
	} {
		answer, err := conn.Request(within(t), request(t, text), nil)
		if err != nil || string(answer.Message.Raw) != want {
			t.Errorf("%s answers %s (%v), want %s", text, answer.Message.Raw, err, want)
		}
	}
}

// Case X1. A response is refused if it would need a hundred times its length in memory.
func TestCall_RefusesAnswersWithTooManyFields(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	n.write = func(_ context.Context, note protoreflect.Message) (protoreflect.Message, error) {
		tags := note.Mutable(note.Descriptor().Fields().ByName("tags")).List()
		for range 300_000 {
			tags.Append(protoreflect.ValueOfString(""))
		}
		return note, nil
	}
	conn := open(t, transport(t, n.addr, nil))
	if _, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil); !errors.Is(err, upstream.ErrNoAnswer) || !strings.Contains(err.Error(), "200000 fields") {
		t.Errorf("it is %v, want no answer", err)
	}
}

// Case X1.
func TestCall_RefusesAnswersThatAreTooLarge(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	body := ""
	n.write = func(_ context.Context, note protoreflect.Message) (protoreflect.Message, error) {
		note.Set(note.Descriptor().Fields().ByName("body"), protoreflect.ValueOfString(body))
		return note, nil
	}
	conn := open(t, transport(t, n.addr, nil))
	for _, size := range []int{1 << 20, 4<<20 - 100} {
		body = strings.Repeat("x", size)
		answer, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(answer.Message.Raw, []byte("x")) < 2*size || resultOf(t, answer).IsError {
			t.Errorf("an answer of %d bytes is %.200s", size, answer.Message.Raw)
		}
	}
	body = strings.Repeat("x", 5<<20) // the call was executed, so its outcome is unknown
	if _, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil); !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("an answer of 5 MiB is %v, want no answer", err)
	}
	// As JSON, each byte of the body becomes six bytes. The result contains the JSON twice, once as a quoted string.
	body = strings.Repeat("\x01", 3<<20)
	if _, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil); !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("an answer that is too large as JSON is %v, want no answer", err)
	}
}

type closes struct {
	grpc.ClientConnInterface
	n int
}

func (c *closes) Close() error {
	c.n++
	if c.n > 1 {
		return errors.New("closed before")
	}
	return nil
}

// A transport does not close a connection that belongs to the caller of New, such as the connection to the mesh's own
// agents service. If that connection were closed twice, the gateway would exit with status 1.
func TestClose_ClosesOnlyItsOwnConnection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		owned bool
		want  int
	}{"of others": {false, 0}, "of its own": {true, 1}} {
		conn := new(closes)
		deps := grpctools.Deps{Conn: conn, Log: slog.New(slog.DiscardHandler)}
		if tt.owned {
			deps.Close = conn.Close
		}
		over, err := grpctools.New(grpctools.Config{Name: "notes"}, deps)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := over.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if conn.n != tt.want {
			t.Errorf("%s: closed %d times, want %d", name, conn.n, tt.want)
		}
	}
}
