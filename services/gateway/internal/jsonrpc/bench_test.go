package jsonrpc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// call returns a tools/call message of about size bytes. It contains strings, numbers and nested objects, as agents'
// calls do.
func call(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/srv/data/report.txt","rows":[null`)
	for b.Len() < size-200 {
		b.WriteString(`,{"id":12345,"name":"some item of a list","price":12.5,"text":"a longer line of plain text, as agents send it here and there"}`)
	}
	b.WriteString(`]},"_meta":{"progressToken":17}}}`)
	return []byte(b.String())
}

func fileCall(lines int) []byte {
	return []byte(toolCall(`{"path":"/srv/a","text":"` + strings.Repeat(`func main() { fmt.Println(\"hello, world\") } // one line of a file\n`, lines) + `"}`))
}

var calls = []struct {
	name string
	raw  []byte
}{{"200B", call(200)}, {"1KB", call(1 << 10)}, {"32KB", call(32 << 10)}, {"32KB file", fileCall(480)}, {"1MB", call(1 << 20)}}

func BenchmarkParse(b *testing.B) {
	limits := jsonrpc.DefaultLimits()
	limits.Tokens = 1 << 20
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			raw := c.raw
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jsonrpc.Parse(raw, limits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFloor measures a lower bound for BenchmarkParse: jsontext reads the same messages token by token in strict
// mode, without the additional checks that Parse makes.
func BenchmarkFloor(b *testing.B) {
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			raw := c.raw
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			var buf bytes.Buffer
			d := jsontext.NewDecoder(&buf)
			for b.Loop() {
				buf = *bytes.NewBuffer(raw)
				d.Reset(&buf)
				for {
					if _, err := d.ReadToken(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// modern is a small call in the form of revision 2026-07-28.
const modern = `{"jsonrpc":"2.0","id":"a7","method":"tools/call","params":{"name":"read_file","arguments":{"path":"/srv/a"},` +
	`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
	`"io.modelcontextprotocol/clientInfo":{"name":"agent","version":"1.0"},"dev.sluice/run":"run-1",` +
	`"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}`

func BenchmarkOutgoing(b *testing.B) {
	trace := jsonrpc.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	raw := []byte(modern)
	b.SetBytes(int64(len(raw)))
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse and splice", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := m.Outgoing(trace, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReadAnswer(b *testing.B) {
	var tools strings.Builder
	tools.WriteString(`{"jsonrpc":"2.0","id":1,"result":{"tools":[`)
	for i := range 353 {
		if i > 0 {
			tools.WriteByte(',')
		}
		fmt.Fprintf(&tools, `{"name":"tool_%d","title":"Tool","description":"Reads a file and returns what is in it, line by line.",`+
			`"inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"where"},"limit":{"type":"integer"}},"required":["path"]}}`, i)
	}
	tools.WriteString(`]}}`)
	answers := []struct{ name, raw string }{
		{"text", `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"two lines\nof a file"}],"isError":false}}`},
		{"353 tools", tools.String()},
	}
	for _, answer := range answers {
		b.Run(answer.name, func(b *testing.B) {
			raw := []byte(answer.raw)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Case X1. BenchmarkEndlessNumber measures how fast a message with one very long number is refused.
func BenchmarkEndlessNumber(b *testing.B) {
	raw := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"n":1e-` + strings.Repeat("9", 3<<20) + `}}}`)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits()); err == nil {
			b.Fatal("it was accepted")
		}
	}
}
