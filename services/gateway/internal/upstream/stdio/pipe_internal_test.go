package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
)

func FuzzFrame(f *testing.F) {
	for _, seed := range []string{
		`{"a":"b"}`, "{\r\n\"a\" :\n[1,\r2]}\n", "{\"\u2028\":\"\u2029\u0085\u00a0\"}", `["\n\\u2028"]`, "\"\\\\\u2028\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		if !jsontext.Value(message).IsValid() {
			t.Skip("only what passed the gate is framed")
		}
		before := bytes.Clone(message)
		line, err := frame(message)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(message, before) {
			t.Fatal("the message was changed")
		}
		body, ok := bytes.CutSuffix(line, []byte("\n"))
		if !ok || bytes.ContainsAny(body, "\r\n\u0085\u2028\u2029") {
			t.Fatalf("%q is not one line", line)
		}
		want, got := jsontext.Value(before), jsontext.Value(bytes.Clone(body))
		if err := errors.Join(want.Canonicalize(), got.Canonicalize()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%q became %q", before, body)
		}
	})
}

func FuzzLineReader(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\nrest"), 10)
	f.Add(bytes.Repeat([]byte("x"), 100), 20)
	f.Add([]byte("0123456789ABCDEF\n0123456789ABCDEFG\n"), 16)
	f.Fuzz(func(t *testing.T, stream []byte, limit int) {
		if limit < 0 || limit > 1<<20 {
			t.Skip("no such limit is configured")
		}
		var want []string
		wantErr := io.EOF
		for line := range bytes.Lines(stream) {
			line, complete := bytes.CutSuffix(line, []byte("\n"))
			text := bytes.TrimSuffix(line, []byte("\r"))
			if complete && len(text) > limit || len(line) > limit+2 {
				wantErr = errLongLine
				break
			}
			if complete {
				want = append(want, string(text))
			}
		}
		lines := lineReader{r: bufio.NewReaderSize(bytes.NewReader(stream), 16), limit: limit, long: bodyreader.New(t.Context(), nil, 0)}
		var got []string
		for {
			line, err := lines.next()
			if err != nil {
				if !errors.Is(err, wantErr) {
					t.Errorf("the end is %v, want %v", err, wantErr)
				}
				break
			}
			got = append(got, string(line))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
	})
}
