package jsonrpc_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// readerMessages is the number of random messages that TestReadersAgree checks.
var readerMessages = flag.Int("messages", 100_000, "how many messages other readers read in TestReadersAgree")

// A reader is a process that parses messages as a server would. For each message, the process prints the parsed value
// in a canonical form.
type reader struct {
	name string
	in   *bufio.Writer
	out  *bufio.Scanner
}

// otherReaders starts the readers that are written in Node and Python. If Python is missing, its reader is omitted.
func otherReaders(t testing.TB) []*reader {
	t.Helper()
	out := []*reader{startReader(t, "JSON.parse", npmtest.Node(t), "testdata/reader.mjs")}
	if python, err := exec.LookPath("python3"); err == nil {
		return append(out, startReader(t, "json.loads", python, "testdata/reader.py"))
	}
	t.Log("python3 is not there: what it reads is not compared")
	return out
}

func startReader(t testing.TB, name string, command ...string) *reader {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	return &reader{name, bufio.NewWriterSize(in, 1<<20), bufio.NewScanner(out)}
}

// read sends messages to a reader process and returns the line that it prints for each message.
func (r *reader) read(t testing.TB, texts [][]byte) (printed []string) {
	t.Helper()
	wrote := make(chan error, 1)
	go func() {
		for _, text := range texts {
			_, _ = r.in.WriteString(base64.StdEncoding.EncodeToString(text) + "\n") // the writer keeps its first error
		}
		wrote <- r.in.Flush()
	}()
	for range texts {
		if !r.out.Scan() {
			t.Fatalf("%s prints nothing more: %v", r.name, r.out.Err())
		}
		printed = append(printed, r.out.Text())
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	return printed
}

func goReads(text []byte) string {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "fails: " + err.Error()
	}
	var out strings.Builder
	if err := canonical(&out, v); err != nil {
		return "fails: " + err.Error()
	}
	sum := sha256.Sum256([]byte(out.String()))
	return hex.EncodeToString(sum[:])
}

// canonical writes the canonical form of a value. Equal values have the same form.
func canonical(out *strings.Builder, v any) error {
	switch v := v.(type) {
	case nil:
		out.WriteByte('n')
	case bool:
		out.WriteString(map[bool]string{true: "t", false: "f"}[v])
	case json.Number:
		n, err := v.Float64()
		if err != nil {
			return err
		}
		if n == 0 {
			n = 0 // the sign of -0 is dropped, because parsers treat it differently
		}
		fmt.Fprintf(out, "#%016x", math.Float64bits(math.Abs(n)*sign(n)))
	case string:
		out.WriteString("s" + hex.EncodeToString([]byte(v)) + ";")
	case []any:
		out.WriteByte('[')
		for _, e := range v {
			if err := canonical(out, e); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	case map[string]any:
		var members []string
		for key, e := range v {
			var member strings.Builder
			if err := canonical(&member, e); err != nil {
				return err
			}
			members = append(members, hex.EncodeToString([]byte(key))+":"+member.String())
		}
		slices.Sort(members)
		out.WriteString("{" + strings.Join(members, "") + "}")
	}
	return nil
}

func sign(n float64) float64 {
	if n < 0 {
		return -1
	}
	return 1
}

// typed receives a message as a Go server would parse it, with a parser that ignores the case of keys.
type typed struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

type named struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

type located struct {
	URI string `json:"uri"`
}

type completing struct {
	Ref struct {
		Type string `json:"type"`
		Name string `json:"name"`
		URI  string `json:"uri"`
	} `json:"ref"`
}

// differs compares the message that the policy service has evaluated with the content that a Go server parses from the
// message that is sent to it. It describes the difference, or returns "" if there is none.
func differs(judged, sent *jsonrpc.Message) string {
	var got typed
	if err := json.Unmarshal(sent.Raw, &got); err != nil {
		return err.Error()
	}
	switch {
	case got.Method != judged.Method || got.Version != "2.0":
		return "the method is " + got.Method
	case string(got.ID) != string(judged.ID.Of(judged.Raw)):
		return "the id is " + string(got.ID)
	}
	var name named
	var at located
	switch {
	case judged.Ref != "":
		var of completing
		if err := json.Unmarshal(got.Params, &of); err != nil {
			return err.Error()
		}
		if of.Ref.Type != judged.Ref {
			return "it completes a " + of.Ref.Type
		}
		name.Name, at.URI = of.Ref.Name, of.Ref.URI
	case judged.Method == "tools/call", judged.Method == "prompts/get":
		if err := json.Unmarshal(got.Params, &name); err != nil {
			return err.Error()
		}
	case strings.HasPrefix(judged.Method, "resources/") && judged.URI != "": // includes unknown methods
		if err := json.Unmarshal(got.Params, &at); err != nil {
			return err.Error()
		}
	}
	arguments := string(name.Arguments)
	if arguments == "null" || judged.Method == "prompts/get" {
		arguments = ""
	}
	want := string(judged.Arguments.Of(judged.Raw))
	if judged.Method != "tools/call" {
		want = ""
	}
	switch {
	case name.Name != judged.Name:
		return "the name is " + name.Name
	case at.URI != judged.URI:
		return "the URI is " + at.URI
	case arguments != want:
		return "the arguments are " + arguments
	}
	return ""
}

// Each message that the gateway sends to a server must be unambiguous: parsers in Go, Node and Python must read the
// same content as the gateway does.
func TestReadersAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	t.Parallel()
	const batch = 2000
	others := otherReaders(t)
	seed := uint64(time.Now().UnixNano())
	draw := generator{rand.New(rand.NewPCG(seed, 0))}
	accepted := 0
	for read := 0; read < *readerMessages; {
		var judged []*jsonrpc.Message
		var sent [][]byte
		for range batch {
			read++
			m, err := jsonrpc.Parse(draw.message(), jsonrpc.DefaultLimits())
			if err != nil || m.Kind == jsonrpc.Response {
				continue
			}
			out, err := m.Outgoing(jsonrpc.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, nil)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, m.Raw, err)
			}
			if how := differs(m, out); how != "" {
				t.Fatalf("seed %d: of %s a server in Go reads otherwise: %s", seed, m.Raw, how)
			}
			judged, sent = append(judged, m), append(sent, out.Raw)
		}
		accepted += len(sent)
		for _, r := range others {
			for i, printed := range r.read(t, sent) {
				if want := goReads(sent[i]); printed != want || strings.HasPrefix(printed, "fails") {
					t.Fatalf("seed %d: of %q, sent as %q, Go reads %s and %s %s", seed, judged[i].Raw, sent[i], want, r.name, printed)
				}
			}
		}
	}
	if accepted*4 < *readerMessages {
		t.Errorf("of %d messages %d alone went on: nearly nothing was compared", *readerMessages, accepted)
	}
	t.Logf("of %d messages %d went on, and all readers read the same in each", *readerMessages, accepted)
}

// FuzzReadersAgree is like TestReadersAgree, but the fuzzer generates the messages.
func FuzzReadersAgree(f *testing.F) {
	others := otherReaders(f)
	draw := generator{rand.New(rand.NewPCG(1, 2))}
	for range 100 {
		f.Add(draw.message())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits())
		if err != nil || m.Kind == jsonrpc.Response {
			return
		}
		out, err := m.Outgoing(jsonrpc.Trace{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if how := differs(m, out); how != "" {
			t.Errorf("a server in Go reads otherwise: %s", how)
		}
		for _, r := range others {
			if printed, want := r.read(t, [][]byte{out.Raw})[0], goReads(out.Raw); printed != want || strings.HasPrefix(printed, "fails") {
				t.Errorf("Go reads %s and %s %s", want, r.name, printed)
			}
		}
	})
}
