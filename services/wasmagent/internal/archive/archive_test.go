package archive_test

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/archive"
)

// newKey returns a key pair that depends only on the name.
func newKey(name string) (ed25519.PublicKey, ed25519.PrivateKey) {
	seed := sha256.Sum256([]byte(name))
	key := ed25519.NewKeyFromSeed(seed[:])
	return key.Public().(ed25519.PublicKey), key
}

// newContent returns the content of an archive in which every field is set.
func newContent() archive.Content {
	at := timestamppb.New(time.Unix(1_800_000_000, 5000))
	return archive.Content{
		Agent: &wasmagentv1.ArchivedAgent{
			FormatVersion: 1, Agent: &wasmagentv1.Agent{Id: "a-1", TurnCount: 3}, Origin: at, GuestSequence: 9, MaxTurns: 7, StoppedByOperator: true,
			Detail: &wasmagentv1.ExportedState{Sequence: 2, JournalHead: "head", Files: []*wasmagentv1.AgentFile{{Path: "a.txt", ModifiedAt: at}, {Path: "ä/b c.txt", ModifiedAt: at}}},
		},
		State: &wasmstorev1.State{
			Memory: []byte{0, 1, 2}, Sequence: 9, Turns: 3,
			Files: []*wasmstorev1.File{{Path: "a.txt", Content: "one", ModifiedAt: at}, {Path: "ä/b c.txt", Content: "", ModifiedAt: at}},
			Messages: []*wasmagentv1.Message{
				{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER, Content: "hi\nthere"}, {Role: wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, Content: "<&>\u2028"},
			},
			Todos: []*wasmagentv1.Todo{{Content: "x", Status: wasmagentv1.TodoStatus_TODO_STATUS_PENDING}},
		},
		Events: []*wasmstorev1.StoredEvent{
			{Event: &wasmagentv1.Event{Epoch: 1, Sequence: 1, Kind: wasmagentv1.EventKind_EVENT_KIND_STORED, EnvelopeDigest: "d"}, Envelope: []byte(`{"a":1.0}`)},
			{Event: &wasmagentv1.Event{Epoch: 1, Sequence: 2}},
		},
		Module: []byte("wasm"),
	}
}

func encode(t testing.TB, c archive.Content) []byte {
	t.Helper()
	_, key := newKey("own")
	text, signature, err := archive.Encode(c, key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, signature) {
		t.Error("the archive does not contain its signature")
	}
	return text
}

func decode(text []byte, names ...string) (archive.Content, error) {
	var keys []ed25519.PublicKey
	for _, name := range names {
		key, _ := newKey(name)
		keys = append(keys, key)
	}
	return archive.Decode(text, keys)
}

// checkEqual reports an error if two contents differ.
func checkEqual(t *testing.T, want, got archive.Content) {
	t.Helper()
	if !proto.Equal(want.Agent, got.Agent) || !proto.Equal(want.State, got.State) || !bytes.Equal(want.Module, got.Module) || (want.Module == nil) != (got.Module == nil) {
		t.Errorf("decoded is %v\n%v\n%q", got.Agent, got.State, got.Module)
	}
	if len(want.Events) != len(got.Events) {
		t.Fatalf("%d events, want %d", len(got.Events), len(want.Events))
	}
	for i := range want.Events {
		if !proto.Equal(want.Events[i], got.Events[i]) {
			t.Errorf("event %d is %v, want %v", i, got.Events[i], want.Events[i])
		}
	}
}

func TestDecode_ReturnsWhatWasEncoded(t *testing.T) {
	t.Parallel()
	whole := newContent()
	bare := archive.Content{Agent: &wasmagentv1.ArchivedAgent{FormatVersion: 1}, State: new(wasmstorev1.State)}
	for name, c := range map[string]archive.Content{"everything": whole, "nothing": bare} {
		got, err := decode(encode(t, c), "other", "own")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		checkEqual(t, c, got)
	}
}

// An archive is identified by its digest, so equal states must produce equal archives.
func TestEncode_IsDeterministicAndChangesNothing(t *testing.T) {
	t.Parallel()
	c := newContent()
	c.Agent.FormatVersion = 0 // Encode sets it in the archive
	text := encode(t, c)
	if c.Agent.GetFormatVersion() != 0 || c.Events[0].GetEvent().GetEnvelopeJson() != "" {
		t.Error("Encode has changed its argument")
	}
	for range 5 {
		if !bytes.Equal(encode(t, newContent()), text) {
			t.Fatal("two archives of equal states differ")
		}
	}
	c.State.Files[0].Content = "two"
	if bytes.Equal(encode(t, c), text) {
		t.Error("archives of two states are equal")
	}
}

// The parts of an archive are files that people can read with tar and sha256sum.
func TestEncode_WritesFilesInOrderWithTheirSums(t *testing.T) {
	t.Parallel()
	files := unpack(t, encode(t, newContent()))
	var names []string
	var sums strings.Builder
	for _, f := range files {
		names = append(names, f.name)
		if !strings.HasPrefix(f.name, "SHA256SUMS") {
			fmt.Fprintf(&sums, "%s  %s\n", sumOf(f.text), f.name)
		}
	}
	want := []string{"agent.json", "files/a.txt", "files/ä/b c.txt", "journal.jsonl", "memory", "messages.jsonl", "module.wasm", "todos.json", "SHA256SUMS", "SHA256SUMS.sig"}
	if !slices.Equal(names, want) {
		t.Errorf("the parts are %q", names)
	}
	key, _ := newKey("own")
	if text := find(files, "SHA256SUMS"); text != sums.String() || !ed25519.Verify(key, []byte(text), []byte(find(files, "SHA256SUMS.sig"))) {
		t.Errorf("the sums are\n%s\nwant\n%s", text, &sums)
	}
	if got := find(files, "journal.jsonl"); got != `{"envelopeDigest":"d","envelopeJson":"{\"a\":1.0}","epoch":1,"kind":"EVENT_KIND_STORED","sequence":"1"}`+"\n"+`{"epoch":1,"sequence":"2"}`+"\n" {
		t.Errorf("the journal is\n%s", got)
	}
	if got := find(files, "messages.jsonl"); strings.Count(got, "\n") != 2 || !strings.HasPrefix(got, `{"content":"hi\nthere"`) {
		t.Errorf("the messages are\n%s", got)
	}
}

func TestEncode_LeavesOutEmptyParts(t *testing.T) {
	t.Parallel()
	c := newContent()
	c.Module, c.State.Memory = nil, nil
	for _, f := range unpack(t, encode(t, c)) {
		if f.name == "module.wasm" || f.name == "memory" {
			t.Errorf("there is a part %s", f.name)
		}
	}
	c.Module = []byte{}
	got, err := decode(encode(t, c), "own")
	if err != nil || got.Module == nil {
		t.Errorf("an empty module is lost: %v", err)
	}
}

func TestEncode_RefusesLargeContent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*archive.Content){
		"a large module": func(c *archive.Content) { c.Module = make([]byte, archive.MaxBytes) },
		"many files": func(c *archive.Content) {
			c.Module, c.State.Memory = make([]byte, archive.MaxBytes/2), make([]byte, archive.MaxBytes/2)
		},
		"a large journal": func(c *archive.Content) {
			c.Events[0].Envelope = []byte(strings.Repeat("x", archive.MaxBytes/2))
			c.Events[1].Envelope = c.Events[0].GetEnvelope()
		},
	} {
		c := newContent()
		change(&c)
		_, key := newKey("own")
		if text, _, err := archive.Encode(c, key); !errors.Is(err, archive.ErrLarge) {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
}

func TestDecode_NeedsASignatureOfAnAcceptedKey(t *testing.T) {
	t.Parallel()
	text := encode(t, newContent())
	for _, names := range [][]string{nil, {"other"}, {"other", "third"}} {
		if _, err := decode(text, names...); !errors.Is(err, archive.ErrSignature) || errors.Is(err, archive.ErrInvalid) {
			t.Errorf("keys %q: %v", names, err)
		}
	}
	files := unpack(t, text)
	files[len(files)-1].text = "short"
	if _, err := decode(pack(t, files...), "own"); !errors.Is(err, archive.ErrSignature) {
		t.Errorf("a signature of another length: %v", err)
	}
	if _, err := decode(pack(t, files[:len(files)-1]...), "own"); !errors.Is(err, archive.ErrSignature) {
		t.Errorf("no signature: %v", err)
	}
}

// An archive is refused if any byte of it is changed, including the padding of the tar file.
func TestDecode_RefusesEveryChangedByte(t *testing.T) {
	t.Parallel()
	c := newContent()
	c.State.Messages, c.State.Todos, c.Events, c.Module = nil, nil, nil, nil
	text := encode(t, c)
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		if _, err := decode(changed, "own"); !errors.Is(err, archive.ErrInvalid) && !errors.Is(err, archive.ErrSignature) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
	}
	for n := range len(text) / 512 {
		if _, err := decode(text[:n*512], "own"); !errors.Is(err, archive.ErrInvalid) && !errors.Is(err, archive.ErrSignature) {
			t.Errorf("the first %d blocks: %v", n, err)
		}
	}
	if _, err := decode(append(bytes.Clone(text), make([]byte, 512)...), "own"); !errors.Is(err, archive.ErrInvalid) {
		t.Errorf("with one more block: %v", err)
	}
}

// The owner of an accepted key can sign any content. Even so, a signed archive is refused unless it has exactly the
// form that the encoder produces, so that all programs read the same content from it.
func TestDecode_RefusesSignedArchivesThatAreNotCanonical(t *testing.T) {
	t.Parallel()
	files := unpack(t, encode(t, newContent()))
	files = files[:len(files)-2] // without the sums and the signature
	for name, tt := range map[string]struct {
		change func([]file) []file
		says   string
	}{
		"in another order":          {func(all []file) []file { slices.Reverse(all); return all }, "its encoding is not canonical"},
		"an unknown part":           {func(all []file) []file { return append(all, file{name: "other", text: "x"}) }, `"other" is not known`},
		"a file that is not listed": {func(all []file) []file { return append(all, file{name: "files/x", text: "x"}) }, `"files/x" is not known`},
		"a listed file that is missing": {func(all []file) []file {
			return slices.DeleteFunc(all, func(f file) bool { return f.name == "files/a.txt" })
		}, "agent.json lists files that are missing"},
		"a part twice":                  {func(all []file) []file { return append(all, file{name: "memory", text: "x"}) }, `"memory" is not a file, or occurs twice`},
		"a folder":                      {func(all []file) []file { return append(all, file{name: "d/", kind: tar.TypeDir}) }, `"d/" is not a file, or occurs twice`},
		"a link":                        {func(all []file) []file { return append(all, file{name: "l", kind: tar.TypeSymlink}) }, `"l" is not a file, or occurs twice`},
		"no agent":                      {drop("agent.json"), "agent.json: "},
		"no todos":                      {drop("todos.json"), "todos.json: "},
		"no messages":                   {drop("messages.jsonl"), "messages.jsonl is missing or incomplete"},
		"no journal":                    {drop("journal.jsonl"), "journal.jsonl is missing or incomplete"},
		"a message without its end":     {edit("messages.jsonl", func(s string) string { return strings.TrimSuffix(s, "\n") }), "messages.jsonl is missing or incomplete"},
		"an empty line":                 {edit("journal.jsonl", func(s string) string { return s + "\n" }), "journal.jsonl: "},
		"a message that is not JSON":    {edit("messages.jsonl", func(string) string { return "{\n" }), "messages.jsonl: "},
		"spaces in the agent":           {edit("agent.json", func(s string) string { return s + " " }), "its encoding is not canonical"},
		"an unknown field of the agent": {edit("agent.json", func(s string) string { return strings.Replace(s, "{", `{"x":1,`, 1) }), "agent.json: "},
		"another version":               {edit("agent.json", func(s string) string { return strings.Replace(s, `"formatVersion":1`, `"formatVersion":2`, 1) }), "format_version is 2, and must be 1"},
		"todos of another agent":        {edit("todos.json", func(s string) string { return strings.Replace(s, "a-1", "a-2", 1) }), "its encoding is not canonical"},
		"an envelope without a digest":  {edit("journal.jsonl", func(s string) string { return strings.Replace(s, `"envelopeDigest":"d",`, "", 1) }), "its encoding is not canonical"},
		"another mode":                  {func(all []file) []file { all[0].mode = 0o755; return all }, "its encoding is not canonical"},
		"a time":                        {func(all []file) []file { all[0].time = time.Unix(1, 0); return all }, "its encoding is not canonical"},
	} {
		_, err := decode(sign(t, tt.change(slices.Clone(files))), "own")
		if !errors.Is(err, archive.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %s", name, err, tt.says)
		}
	}
	if _, err := decode(sign(t, files), "own"); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// A sparse file in a tar archive can be far larger than the archive. Such an archive is refused.
func TestDecode_RefusesPartsThatAreLargerThanTheArchive(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "memory", Size: 512, Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.name": "memory", "XXX.sparse.realsize": "100000000",
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(append([]byte("0\n"), make([]byte, 510)...)); err != nil { // the list of the parts that are not holes
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text := bytes.ReplaceAll(out.Bytes(), []byte("XXX.sparse"), []byte("GNU.sparse")) // the writer makes no sparse files
	if _, err := decode(text, "own"); !errors.Is(err, archive.ErrInvalid) || !strings.Contains(err.Error(), `"memory" is larger than the archive`) {
		t.Errorf("%v", err)
	}
}

// file is a file of a tar archive.
type file struct {
	name, text string
	kind       byte
	mode       int64
	time       time.Time
}

func unpack(t testing.TB, text []byte) (all []file) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file{name: h.Name, text: string(part)})
	}
}

func find(all []file, name string) string {
	i := slices.IndexFunc(all, func(f file) bool { return f.name == name })
	return all[i].text
}

func pack(t testing.TB, all ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range all {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if f.kind != 0 {
			h.Typeflag, h.Linkname = f.kind, "x"
		}
		if f.mode != 0 {
			h.Mode = f.mode
		}
		if !f.time.IsZero() {
			h.ModTime = f.time
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sign returns an archive of the files, with their checksums and a signature by the test's own key.
func sign(t testing.TB, all []file) []byte {
	t.Helper()
	sorted := slices.SortedFunc(slices.Values(all), func(a, b file) int { return strings.Compare(a.name, b.name) })
	var sums strings.Builder
	for _, f := range sorted {
		fmt.Fprintf(&sums, "%s  %s\n", sumOf(f.text), f.name)
	}
	_, key := newKey("own")
	return pack(t, append(slices.Clone(all), file{name: "SHA256SUMS", text: sums.String()}, file{name: "SHA256SUMS.sig", text: string(ed25519.Sign(key, []byte(sums.String())))})...)
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func drop(name string) func([]file) []file {
	return func(all []file) []file { return slices.DeleteFunc(all, func(f file) bool { return f.name == name }) }
}

func edit(name string, change func(string) string) func([]file) []file {
	return func(all []file) []file {
		for i := range all {
			if all[i].name == name {
				all[i].text = change(all[i].text)
			}
		}
		return all
	}
}
