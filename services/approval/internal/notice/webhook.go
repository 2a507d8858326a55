package notice

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Webhook configures an HTTP endpoint that receives signed requests about approvals. The requests conform to the
// Standard Webhooks specification. Every status other than 2xx is a failure. Redirects are not followed.
type Webhook struct {
	Target
	// URL is the URL of the endpoint. Its scheme is https, or http if the endpoint is on the same machine.
	URL string
	// Secret is the signing key. It consists of `whsec_` and 24 to 64 bytes in base64.
	Secret config.Secret
}

const (
	// maxResponse is the maximum number of bytes that are read from a response body. The body is read so that the
	// connection can be reused. maxHeader is the maximum size of a response header, in bytes.
	maxResponse = 4 << 10
	maxHeader   = 64 << 10
)

func (w *Webhook) target() Target { return w.Target }

func (w *Webhook) validate() error {
	errs := []error{w.Target.validate()}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		errs = append(errs, fmt.Errorf("notices: %s: url is not a valid URL without a user", w.Name)) // err may contain a secret
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		errs = append(errs, fmt.Errorf("notices: %s: url must use https, or http on the same machine", w.Name))
	}
	if key, err := w.key(); err != nil || len(key) < 24 || len(key) > 64 {
		errs = append(errs, fmt.Errorf("notices: %s: secret must be `whsec_` and 24 to 64 bytes in base64", w.Name))
	}
	return errors.Join(errs...)
}

func (w *Webhook) key() ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.TrimPrefix(string(w.Secret), "whsec_"))
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (w *Webhook) open(Deps) (Channel, error) {
	key, err1 := w.key()
	signer, err2 := standardwebhooks.NewWebhookRaw(key)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &webhook{url: w.URL, signer: signer, client: &http.Client{
		Transport:     &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: batchSize, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHeader},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

type webhook struct {
	url    string
	signer *standardwebhooks.Webhook
	client *http.Client
}

// event is the body of a request to a webhook.
type event struct {
	Type      string            `json:"type"`
	Timestamp time.Time         `json:"timestamp"`
	Tenant    string            `json:"tenant"`
	Data      safetext.Approval `json:"data"`
}

// Send implements Channel.
func (w *webhook) Send(ctx context.Context, m *Message) (string, error) {
	body, err := json.Marshal(event{
		Type: "approval." + m.Kind, Timestamp: m.Due, Tenant: m.Approval.GetRequester().GetTenant(), Data: safetext.ApprovalOf(m.Approval),
	})
	if err != nil {
		return "", fmt.Errorf("write the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return "", errors.New("make the request")
	}
	now := time.Now()
	signature, err := w.signer.Sign(m.ID, now, body)
	if err != nil {
		return "", fmt.Errorf("sign the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sluice")
	req.Header.Set(standardwebhooks.HeaderWebhookID, m.ID)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	resp, err := w.client.Do(req)
	if err != nil {
		return "", withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()                           // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxResponse)) // only the status matters
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return "", fmt.Errorf("the endpoint answered with status %d instead of 2xx", resp.StatusCode)
	}
	return "", nil
}

// withoutURL returns err without its URL, which may contain a secret.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
