package wire

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// A Head is what all requests of one kind have before their bodies. It is written once and
// sent often. It does not change.
type Head struct {
	req *http.Request
	// before and behind are what stands on both sides of the length of the body.
	before, behind []byte
}

// A Field is one more line of a head. One without a value is left out.
type Field struct{ Name, Value string }

// noLength is how net/http says that there is no body.
const noLength = "\r\nContent-Length: 0\r\n"

// NewHead returns the head of a request, whose body is not looked at. It is written as
// net/http writes it. Errors are those of [http.Request.Write].
func NewHead(req *http.Request) (*Head, error) {
	req = req.Clone(context.Background())
	req.Body, req.ContentLength = http.NoBody, 0
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return nil, fmt.Errorf("write the head of a request: %w", err)
	}
	whole := bytes.TrimSuffix(text.Bytes(), []byte("\r\n"))     // the line that ends it
	before, behind, sized := bytes.Cut(whole, []byte(noLength)) // no field's value holds the end of a line
	if sized {
		before = append(bytes.Clone(before), "\r\n"...)
	}
	return &Head{req: req, before: before, behind: behind}, nil
}

// write writes the head with these fields, and the body. What fails the writer says when it
// is flushed.
func (h *Head) write(to *bufio.Writer, fields []Field, body []byte) {
	_, _ = to.Write(h.before)
	if body != nil {
		_, _ = to.WriteString("Content-Length: ")
		_, _ = to.Write(strconv.AppendInt(to.AvailableBuffer(), int64(len(body)), 10))
		_, _ = to.WriteString("\r\n")
	}
	_, _ = to.Write(h.behind)
	for _, f := range fields {
		if f.Value != "" {
			_, _ = to.WriteString(f.Name)
			_, _ = to.WriteString(": ")
			_, _ = to.WriteString(f.Value)
			_, _ = to.WriteString("\r\n")
		}
	}
	_, _ = to.WriteString("\r\n")
	_, _ = to.Write(body)
}

// request is the same for net/http's own transport.
func (h *Head) request(ctx context.Context, fields []Field, body []byte) *http.Request {
	req := h.req.Clone(ctx)
	for _, f := range fields {
		if f.Value != "" {
			req.Header[http.CanonicalHeaderKey(f.Name)] = []string{f.Value}
		}
	}
	if body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return req
}
