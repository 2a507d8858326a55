package mcpserver_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Case X1. A caller disconnects while it waits for a list. The gateway cancels its own request to the server.
func TestList_EndsWhenTheCallerDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		id := w.connect().Get("Mcp-Session-Id")
		ended := make(chan error, 1)
		w.files.Request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		c := w.dial()
		if _, err := fmt.Fprint(c, requestHead(anaToken, id, len(toolsList))+toolsList); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		begin := time.Now()
		c.Close()
		if err := <-ended; err == nil || time.Since(begin) > time.Second {
			t.Errorf("the server's list went on for %v: %v", time.Since(begin), err)
		}
	})
}

// Case X1. At most two of a principal's lists are filtered at a time. This does not delay the principal's calls or
// other principals' lists.
func TestList_FilteringIsLimitedForOneCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		var working, most atomic.Int32
		release := make(chan struct{})
		filter := w.Policy.Filter
		w.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			if n := working.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			working.Add(-1)
			return filter(r)
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"tools":[{"name":"a"}],"content":[]}`), nil
		}
		ana, ben := w.connect(), http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initialize, ben).header.Get("Mcp-Session-Id"))
		statuses := make(chan int, 101)
		for range cap(statuses) - 1 {
			go func() { statuses <- w.do("POST", "/mcp/files", toolsList, ana).status }()
		}
		synctest.Wait()
		if most.Load() != 2 {
			t.Errorf("%d lists of one principal are judged at a time, want 2", most.Load())
		}
		if got := w.do("POST", "/mcp/files", toolCall, ana); got.status != http.StatusOK || got.code() != "" {
			t.Errorf("its call: %d %s", got.status, got.body)
		}
		go func() { statuses <- w.do("POST", "/mcp/files", toolsList, ben).status }()
		synctest.Wait()
		if most.Load() != 3 {
			t.Errorf("%d lists are judged, want another caller's too", most.Load())
		}
		close(release)
		for range cap(statuses) {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("a list that has waited: %d", status)
			}
		}
	})
}

// Case X1. While a request waits until the policy service has filtered its list, it holds no time slice, so that other
// lists can be parsed.
func TestList_NoTimesliceIsHeldWhilePolicyIsAsked(t *testing.T) {
	t.Parallel()
	for name, standing := range map[string]*policyv1.CheckServerResponse{
		"of a server": {CouldAllow: true, HidesNone: true}, "of the gateway's own": {CouldAllow: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, `{"tools":[{"name":"a"}],"content":[]}`), nil
				}
				ana := w.connect()
				w.Policy.Access = standing
				release, asked, filter := make(chan struct{}), 0, w.Policy.Filter
				w.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
					if asked++; asked == 1 {
						<-release
					}
					return filter(r)
				}
				first := make(chan httpResponse, 1)
				body := toolsList
				if !standing.GetHidesNone() {
					body = toolCall
				}
				go func() { first <- w.do("POST", "/mcp/files", body, ana) }()
				synctest.Wait()
				if asked != 1 {
					t.Fatal("policy was not asked")
				}
				done := make(chan httpResponse, 1)
				go func() { done <- w.do("POST", "/mcp/files", toolsList, ana) }()
				synctest.Wait()
				select {
				case got := <-done:
					if got.code() != "" {
						t.Errorf("%d %s", got.status, got.body)
					}
				default:
					t.Error("a list waits for policy's answer to another")
				}
				close(release)
				<-first
			})
		})
	}
}

// Case X1. The policy service filters a long list in parts, and other requests are served between the parts. If the
// policy changes between two parts of a list, the list is refused.
func TestList_LongOneIsFilteredInParts(t *testing.T) {
	t.Parallel()
	const listed, part = 1100, 512
	tools := make([]string, listed)
	for i := range tools {
		tools[i] = fmt.Sprintf(`{"name":"t%d"}`, i)
	}
	for name, change := range map[string]bool{"by one revision": false, "by two": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestGateway(t)
			w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Result(r, `{"tools":[`+strings.Join(tools, ",")+`]}`), nil
			}
			var parts []int
			filter := w.Policy.Filter
			w.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
				parts = append(parts, len(r.GetTools()))
				resp, err := filter(r)
				if change {
					resp.PolicyRevision = fmt.Sprint("r", len(parts))
				}
				return resp, err
			}
			got := w.do("POST", "/mcp/files", toolsList, w.connect())
			if change {
				if shown := strings.Count(got.body, `"name":"t`); got.code() != "policy_unavailable" || shown != 0 {
					t.Errorf("%s, and %d tools are shown", got.code(), shown)
				}
				return
			}
			if want := []int{part, part, listed - 2*part}; !slices.Equal(parts, want) {
				t.Errorf("policy was asked about %d tools, want %d", parts, want)
			}
			if shown := strings.Count(got.body, `"name":"t`); shown != listed {
				t.Errorf("%d tools are shown", shown)
			}
		})
	}
}

// Case T1. A server sends a different tool definition to one session. That session's calls are evaluated with the
// different definition. Other sessions' calls are evaluated with the accepted definition. The same applies if the list
// that the session receives is ambiguous.
func TestCall_IsDecidedByTheDefinitionThatItsSessionListed(t *testing.T) {
	t.Parallel()
	const good, bad = `{"name":"safe"}`, `{"name":"safe","description":"sends it to us"}`
	for name, tt := range map[string]struct {
		list string
		want []byte
	}{
		"another definition": {bad, toolreporttest.Digest(bad)},
		"a name twice":       {good + "," + bad, make([]byte, 32)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Policy.Access.Methods = everything
				w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() == "initialize" {
						return w.files.Open(r)
					}
					return gatewaytest.Result(r, `{"tools":[`+good+`]}`), nil
				}
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						return gatewaytest.Result(r, `{"tools":[`+tt.list+`]}`), nil
					}
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				w.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
					resp := new(policyv1.FilterToolsResponse)
					for _, tool := range r.GetTools() {
						said := &policyv1.ToolVisibility{Name: tool.GetName(), Visible: bytes.Equal(tool.GetDefinitionDigest(), toolreporttest.Digest(good))}
						if !said.GetVisible() {
							said.Code = commonv1.Code_CODE_TOOL_CHANGED
						}
						resp.Tools = append(resp.Tools, said)
					}
					return resp, nil
				}
				ben := http.Header{"Authorization": {"Bearer " + benToken}}
				ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initialize, ben).header.Get("Mcp-Session-Id"))
				h := w.connectAs(initialize)
				if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h); strings.Contains(got.body, `"safe"`) {
					t.Errorf("the client is shown %s", got.body)
				}
				w.do("POST", "/mcp/files", toolCall, h)
				w.do("POST", "/mcp/files", toolCall, ben)
				if got := w.Policy.Decided(); len(got) != 2 || !bytes.Equal(got[0].Call.GetDefinitionDigest(), tt.want) || !bytes.Equal(got[1].Call.GetDefinitionDigest(), toolreporttest.Digest(good)) {
					t.Errorf("the calls were %v", got)
				}
			})
		})
	}
}
