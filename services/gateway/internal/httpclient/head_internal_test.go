package httpclient

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func read(t *rapid.T, text []byte) (head http.Header, line, body string) {
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
	if err != nil {
		t.Fatalf("%v\n%q", err, text)
	}
	all, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	if req.ContentLength != int64(len(all)) {
		t.Fatalf("it announces %d bytes and has %d", req.ContentLength, len(all))
	}
	return req.Header, req.Method + " " + req.Host + " " + req.RequestURI + " " + req.Proto, string(all)
}

// A request that this package writes has the same meaning for a server as the same request written by net/http.
func TestHead_IsReadLikeOneOfNetHTTP(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[A-Za-z][A-Za-z0-9-]{0,10}`)
	value := rapid.StringMatching(`[ -~\t\r\n]{0,20}|Content-Length: 0|\r\nContent-Length: 0\r\n`)
	rapid.Check(t, func(t *rapid.T) {
		header := make(http.Header)
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			header.Set("X-"+name.Draw(t, "name"), value.Draw(t, "value"))
		}
		if rapid.Bool().Draw(t, "own agent") {
			header.Set("User-Agent", value.Draw(t, "agent"))
		}
		method := rapid.SampledFrom([]string{http.MethodPost, http.MethodDelete}).Draw(t, "method")
		u := &url.URL{Scheme: "http", Host: rapid.SampledFrom([]string{"a.test", "[::1]:80", "ä.test:8080"}).Draw(t, "host"), Path: rapid.StringMatching(`/[a-zä %]{0,5}`).Draw(t, "path")}
		head, err := NewHead(&http.Request{Method: method, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header})
		if err != nil {
			t.Fatal(err)
		}
		var fields []Field
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			fields = append(fields, Field{Name: "F-" + name.Draw(t, "field"), Value: rapid.StringMatching(`[!-~]{0,20}`).Draw(t, "value")})
		}
		var body []byte
		if method == http.MethodPost {
			body = append(body, rapid.StringN(1, 50, -1).Draw(t, "body")...)
		}
		var own, other bytes.Buffer
		out := bufio.NewWriterSize(&own, 64)
		head.write(out, fields, body)
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := head.request(t.Context(), fields, body).Write(&other); err != nil {
			t.Fatal(err)
		}
		ownHead, ownLine, ownBody := read(t, own.Bytes())
		head2, line2, body2 := read(t, other.Bytes())
		for _, f := range fields { // this package repeats a name, but net/http overwrites its value
			if len(ownHead.Values(f.Name)) > 1 {
				t.Skip("two fields of one name")
			}
		}
		if diff := cmp.Diff(head2, ownHead); diff != "" || ownLine != line2 || ownBody != body2 || ownBody != string(body) {
			t.Fatalf("%q\n%q\n%s", own.Bytes(), other.Bytes(), diff)
		}
	})
}

func TestSend_RefusesFieldsWithLineBreaks(t *testing.T) {
	t.Parallel()
	u, err := url.Parse("http://127.0.0.1:1/mcp")
	if err != nil {
		t.Fatal(err)
	}
	head, err := NewHead(&http.Request{Method: http.MethodPost, URL: u, Header: make(http.Header)})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"a\nb", "a\rb", "a\x00b"} {
		if resp, err := newDirect(u, Options{}).Send(t.Context(), head, []Field{{Name: "F", Value: bad}}, []byte("{}")); !errors.Is(err, ErrNeverSent) || !strings.Contains(err.Error(), "the header F") {
			t.Errorf("%q was sent: %v, %v", bad, resp, err)
		}
	}
}
