package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// maxShown is the maximum length, in bytes, of what an error repeats of a response.
const maxShown = 200

// statusError is a response with a status other than 200.
type statusError struct {
	status int
	body   []byte
	// retryAfter is the delay that the server requests, or 0.
	retryAfter time.Duration
}

// Error returns the status and the first error message of the response.
func (e *statusError) Error() string {
	var got struct {
		Errors []string `json:"errors"`
	}
	text := fmt.Sprintf("HTTP %d", e.status)
	if err := json.Unmarshal(e.body, &got); err != nil || len(got.Errors) == 0 {
		return text
	}
	message := safetext.Line(strings.TrimSpace(got.Errors[0]))
	if len(message) > maxShown {
		message = strings.ToValidUTF8(message[:maxShown], "") + "…"
	}
	return text + ", " + message
}

// isDeleted reports whether the response is about a secret whose newest version is deleted.
func (e *statusError) isDeleted() bool {
	var got secretResponse
	return json.Unmarshal(e.body, &got) == nil && (got.Data.Metadata.DeletionTime != "" || got.Data.Metadata.Destroyed)
}

// isTemporary reports whether the request may succeed later. 472 and 473 are a standby node's statuses.
func (e *statusError) isTemporary() bool {
	return e.status == http.StatusTooManyRequests || e.status >= 500 || e.status == 412 || e.status == 472 || e.status == 473
}

// do sends a request, and repeats it if the server is unavailable. It decodes the response into out.
func (c *Client) do(ctx context.Context, method, path string, body map[string]string, out any) error {
	for attempt := 1; ; attempt++ {
		raw, err := c.send(ctx, method, path, body)
		if err == nil {
			if err = json.Unmarshal(raw, out); err != nil {
				return errors.New("the response is not the JSON of Vault: check secrets.vault.address")
			}
			return nil
		}
		refused, delay := (*statusError)(nil), retryDelay<<(attempt-1)
		if errors.As(err, &refused) {
			delay = max(delay, refused.retryAfter)
		}
		if attempt == attempts || ctx.Err() != nil || refused != nil && !refused.isTemporary() {
			return err
		}
		select {
		case <-ctx.Done():
			return err // the reason is more useful than that the time is over
		case <-time.After(delay):
		}
	}
}

// send sends a request once, and returns the body of a response with the status 200.
func (c *Client) send(ctx context.Context, method, path string, body map[string]string) ([]byte, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.config.Address, "/")+path, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Vault-Request", "true")
	for name, value := range map[string]string{"X-Vault-Token": c.token, "X-Vault-Namespace": c.config.Namespace} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read, or its error is returned
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the response is incomplete: %w", err)
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, &statusError{status: resp.StatusCode, body: []byte(`{"errors":["a redirect, which is not followed: write the address of the active node into secrets.vault.address"]}`)}
	case resp.StatusCode != http.StatusOK:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date is ignored
		return nil, &statusError{status: resp.StatusCode, body: raw, retryAfter: time.Duration(min(max(seconds, 0), 60)) * time.Second}
	case len(raw) > maxResponse:
		return nil, fmt.Errorf("the response has more than %d bytes", maxResponse)
	}
	return raw, nil
}
