package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// matrixSDK is a session of the official Go SDK's client. It is one of the clients in the matrix.
type matrixSDK struct {
	*mcp.ClientSession

	// changed receives the URIs of changed resources, and steps receives progress notifications.
	changed chan string
	steps   chan *mcp.ProgressNotificationParams
}

// useSDK returns a function that uses features with the official Go SDK over a transport. The function subscribes to
// changes first, and waits for the change notification last.
func useSDK(over func(t *testing.T, url, token string) mcp.Transport) func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
	return func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
		t.Helper()
		c := &matrixSDK{changed: make(chan string, 100), steps: make(chan *mcp.ProgressNotificationParams, 100)}
		client := mcp.NewClient(&mcp.Implementation{Name: "matrix", Version: "1"}, &mcp.ClientOptions{
			CreateMessageHandler: gosdk.EchoSample, //nolint:staticcheck // see gosdk.ConnectInteractive
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"username": "ana", "name": "ana"}}, nil
			},
			ResourceUpdatedHandler:      func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { c.changed <- r.Params.URI },
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { c.steps <- r.Params },
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		if c.ClientSession, err = client.Connect(ctx, over(t, url, token), nil); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		did := make(map[string]npmtest.FeatureResult, len(tries))
		watched, watches := tries[mcpSubscriptions]
		if watches {
			if err := c.Subscribe(ctx, &mcp.SubscribeParams{URI: watched.URI}); err != nil {
				t.Errorf("subscribe: %v", err)
			}
		}
		for _, feature := range features() {
			try, ok := tries[feature]
			if !ok || feature == mcpSubscriptions {
				continue
			}
			within, cancel := context.WithTimeout(ctx, 15*time.Second)
			did[feature] = c.useFeature(within, feature, try)
			cancel()
		}
		if watches {
			did[mcpSubscriptions] = c.awaitChange(ctx, watched)
		}
		return did
	}
}

func (c *matrixSDK) useFeature(ctx context.Context, feature string, try npmtest.FeatureUse) (did npmtest.FeatureResult) {
	var err error
	switch feature {
	case mcpTools:
		for listed, failed := range c.Tools(ctx, nil) {
			if failed != nil {
				return npmtest.FeatureResult{Error: failed.Error()}
			}
			did.Listed = append(did.Listed, listed.Name)
		}
		did.Text, err = c.callTool(ctx, try)
	case mcpResources:
		did, err = c.readResource(ctx, try)
	case mcpPrompts:
		for listed, failed := range c.Prompts(ctx, nil) {
			if failed != nil {
				return npmtest.FeatureResult{Error: failed.Error()}
			}
			did.Listed = append(did.Listed, listed.Name)
		}
		did.Text, err = marshalResult(c.GetPrompt(ctx, &mcp.GetPromptParams{Name: try.Name}))
	case mcpCompletion:
		params := &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: try.Name}}
		for name, value := range try.Arguments {
			params.Argument = mcp.CompleteParamsArgument{Name: name, Value: fmt.Sprint(value)}
		}
		did.Text, err = marshalResult(c.Complete(ctx, params))
	case mcpProgress:
		did.Text, err = c.countProgress(ctx, try)
	case mcpCancellation:
		did.Text, err = c.cancelCall(ctx, try)
	default:
		did.Text, err = c.callTool(ctx, try)
	}
	if err != nil {
		did.Error = err.Error()
	}
	return did
}

// marshalResult returns a result as JSON. If err is not nil, it returns err.
func marshalResult[R any](result R, err error) (string, error) {
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(result)
	return string(raw), err
}

func (c *matrixSDK) callTool(ctx context.Context, try npmtest.FeatureUse) (string, error) {
	args := try.Arguments
	if args == nil {
		args = map[string]any{}
	}
	params := &mcp.CallToolParams{Name: try.Name, Arguments: args}
	params.SetProgressToken("steps")
	return marshalResult(c.CallTool(ctx, params))
}

// readResource lists resources and resource templates, and reads one resource.
func (c *matrixSDK) readResource(ctx context.Context, try npmtest.FeatureUse) (did npmtest.FeatureResult, err error) {
	for listed, err := range c.Resources(ctx, nil) {
		if err != nil {
			return did, err
		}
		did.Listed = append(did.Listed, listed.URI)
	}
	if _, err := c.ListResourceTemplates(ctx, nil); err != nil {
		return did, err
	}
	did.Text, err = marshalResult(c.ReadResource(ctx, &mcp.ReadResourceParams{URI: try.URI}))
	return did, err
}

// countProgress makes a call and counts its progress notifications, whose values must increase.
func (c *matrixSDK) countProgress(ctx context.Context, try npmtest.FeatureUse) (string, error) {
	for len(c.steps) > 0 { // drop the notifications of earlier calls
		<-c.steps
	}
	if _, err := c.callTool(ctx, try); err != nil {
		return "", err
	}
	rising, last, patience := "rising", -1.0, 5*time.Second // notifications may arrive after the result
	for n := 0; ; n++ {
		select {
		case step := <-c.steps:
			if step.Progress <= last {
				rising = "not rising"
			}
			if last = step.Progress; last >= step.Total {
				patience = 200 * time.Millisecond
			}
		case <-time.After(patience):
			return fmt.Sprintf("%d steps, %s", n, rising), nil
		}
	}
}

// cancelCall starts a long call and cancels it.
func (c *matrixSDK) cancelCall(ctx context.Context, try npmtest.FeatureUse) (string, error) {
	hasty, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if answer, err := c.callTool(hasty, try); !errors.Is(err, context.DeadlineExceeded) {
		return answer, err
	}
	return "given up", nil
}

// awaitChange waits for the notification that a resource has changed. If try has the name of a tool, awaitChange calls
// the tool to cause the change. If the tool switches changes on and off, awaitChange switches them off at the end.
func (c *matrixSDK) awaitChange(ctx context.Context, try npmtest.FeatureUse) (did npmtest.FeatureResult) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	change := func() (said string) {
		if try.Name != "" {
			said, _ = c.callTool(ctx, try) // if the call fails, no notification arrives and the wait below times out
		}
		return said
	}
	said := change()
	if strings.Contains(said, "Stopped") {
		said = change()
	}
	select {
	case uri := <-c.changed:
		did.Text = "changed " + uri
	case <-ctx.Done():
		did.Error = "no notification of a change arrived: " + said
	}
	if strings.Contains(said, "Started") {
		change()
	}
	if err := c.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: try.URI}); err != nil {
		did.Error += err.Error()
	}
	return did
}
