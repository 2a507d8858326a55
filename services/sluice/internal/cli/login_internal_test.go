package cli

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// Only a response with the state of the sign-in counts, and only if it was sent by the issuer.
func TestCallbackHandler_AcceptsOnlyTheAnswerOfTheIssuer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		query       string
		sendsIssuer bool
		status      int
		code, err   string
	}{
		"the answer":                    {query: "state=s&code=c", status: 200, code: "c"},
		"the answer with its issuer":    {query: "state=s&code=c&iss=https://idp", sendsIssuer: true, status: 200, code: "c"},
		"another state":                 {query: "state=x&code=c", status: 400},
		"no state":                      {query: "code=c", status: 400},
		"another issuer":                {query: "state=s&code=c&iss=https://evil", status: 200, err: "instead of the issuer"},
		"no issuer, which is announced": {query: "state=s&code=c", sendsIssuer: true, status: 200, err: "instead of the issuer"},
		"a refusal":                     {query: "state=s&error=access_denied&error_description=%1b[31mno", status: 200, err: "access_denied"},
		"no code":                       {query: "state=s", status: 200, err: "contains no code"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := make(chan callback, 1)
			handler := callbackHandler(&authorizationRequest{state: "s", issuer: "https://idp", sendsIssuer: c.sendsIssuer}, answers)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, callbackPath+"?"+c.query, nil))
			if w.Code != c.status {
				t.Errorf("the status is %d", w.Code)
			}
			select {
			case got := <-answers:
				if c.status != 200 || got.code != c.code || (got.err == nil) != (c.err == "") || got.err != nil && !strings.Contains(got.err.Error(), c.err) {
					t.Errorf("the answer is %+v", got)
				}
				if got.err != nil && strings.Contains(got.err.Error(), "\x1b") {
					t.Errorf("the error contains a control character: %q", got.err)
				}
			default:
				if c.status == 200 {
					t.Error("there is no answer")
				}
			}
		})
	}
}

func TestCheckPage_RefusesWhatABrowserMustNotOpen(t *testing.T) {
	t.Parallel()
	for page, isAccepted := range map[string]bool{
		"https://login.example.com/authorize?a=b": true, "http://127.0.0.1:1/authorize": true, "": false, "file:///etc/passwd": false,
		"http://login.example.com/": false, `\\evil\share`: false, "javascript:alert(1)": false, "--help": false,
	} {
		if err := checkPage(page); (err == nil) != isAccepted {
			t.Errorf("%s: %v", page, err)
		}
	}
}

// The state is compared as a whole, and the page says nothing of the code.
func TestCallbackHandler_ShowsNoCode(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	query := url.Values{"state": {"s"}, "code": {"secret-code"}}
	callbackHandler(&authorizationRequest{state: "s"}, make(chan callback, 1)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, callbackPath+"?"+query.Encode(), nil))
	if strings.Contains(w.Body.String(), "secret-code") || w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
}
