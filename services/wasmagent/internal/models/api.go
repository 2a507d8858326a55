package models

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/tmaxmax/go-sse"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// api is an endpoint of a provider's API. It answers with an event stream.
type api struct {
	client *http.Client
	url    string
	header http.Header
}

// newAPI returns the endpoint at a path below the configured base URL. If the configuration contains no base URL,
// newAPI uses the provider's standard base URL.
func newAPI(client *http.Client, configured, standard, path string, header http.Header) (api, error) {
	base := configured
	if base == "" {
		base = standard
	}
	endpoint, err := url.JoinPath(base, path)
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "text/event-stream, application/json")
	return api{client, endpoint, header}, err
}

// stream sends a question and calls add for each event of the answer, until add reports the end of the answer. hasBegun
// is true if at least one event has arrived. stream returns a [*FailureError], [ErrLarge], the context's error, or the
// error that add returned.
func (a api) stream(ctx context.Context, question any, add func(kind string, event []byte) (end bool, err error)) (hasBegun bool, err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return false, rejected("the question can't be written as JSON")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(body))
	if err != nil {
		return false, rejected("the address of the provider can't be used")
	}
	req.Header = a.header.Clone()
	resp, err := a.client.Do(req)
	if err != nil {
		return false, transportError(ctx, err, false)
	}
	defer resp.Body.Close() //nolint:errcheck // the answer was only read
	for event, err := range sse.Read(resp.Body, &sse.ReadConfig{MaxEventSize: maxStreamBytes}) {
		if err != nil {
			return hasBegun, transportError(ctx, err, hasBegun)
		}
		if event.Data == "" || event.Type == "ping" { // such an event only keeps the connection open
			continue
		}
		if isErrorEvent([]byte(event.Data)) {
			return hasBegun, eventFailure([]byte(event.Data), hasBegun)
		}
		end, err := add(event.Type, []byte(event.Data))
		if err != nil {
			return hasBegun, err
		}
		if hasBegun = true; end {
			return hasBegun, nil
		}
	}
	return hasBegun, nil
}

// answerBlock is a block of an answer. It is a text, a tool call, or a block of a type that is ignored.
type answerBlock struct {
	kind, id, name string
	initial        json.RawMessage
	text, input    strings.Builder
}

// isErrorEvent reports whether an event is an error event. The APIs of both providers send an error event if they fail
// after the stream has begun.
func isErrorEvent(event []byte) bool {
	if !bytes.Contains(event, []byte(`"error"`)) { // so that most events are parsed only once
		return false
	}
	var failed struct {
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(event, &failed) == nil && failed.Error != nil && string(failed.Error) != "null"
}

// schemaOf returns the members of a tool's JSON input schema, or an empty map if the tool has no schema.
func schemaOf(t *wasmagentv1.ModelTool) (map[string]json.RawMessage, error) {
	schema := make(map[string]json.RawMessage)
	if t.GetInputSchema() == "" {
		return schema, nil
	}
	if err := json.Unmarshal([]byte(t.GetInputSchema()), &schema); err != nil || schema == nil {
		return nil, rejected("the schema of " + t.GetName() + " is not a JSON object")
	}
	return schema, nil
}
