package httpclient

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// A Head is an encoded request head (request line and headers) that is used for all requests of one kind. It is
// immutable.
type Head struct {
	req *http.Request
	// before and after are the parts of the head before and after the header Content-Length, which differs between
	// requests.
	before, after []byte
}

// A Field is an additional header. It is not sent if it has no value.
type Field struct{ Name, Value string }

// emptyLength is the Content-Length header that net/http writes for a request without a body.
const emptyLength = "\r\nContent-Length: 0\r\n"

// NewHead returns the head of a request, encoded as net/http would encode it. It ignores the body of the request. It
// returns the same errors as [http.Request.Write].
func NewHead(req *http.Request) (*Head, error) {
	req = req.Clone(context.Background())
	req.Body, req.ContentLength = http.NoBody, 0
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return nil, fmt.Errorf("write the head of a request: %w", err)
	}
	encoded := bytes.TrimSuffix(text.Bytes(), []byte("\r\n"))       // without the blank line at the end
	before, after, sized := bytes.Cut(encoded, []byte(emptyLength)) // the header cannot be part of a value, because no value contains a line break
	if sized {
		before = append(bytes.Clone(before), "\r\n"...)
	}
	return &Head{req: req, before: before, after: after}, nil
}

// write writes the head with the additional fields, followed by the body. It returns no errors, because the caller
// receives them from the writer's Flush method.
func (h *Head) write(to *bufio.Writer, fields []Field, body []byte) {
	_, _ = to.Write(h.before)
	if body != nil {
		_, _ = to.WriteString("Content-Length: ")
		_, _ = to.Write(strconv.AppendInt(to.AvailableBuffer(), int64(len(body)), 10))
		_, _ = to.WriteString("\r\n")
	}
	_, _ = to.Write(h.after)
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
