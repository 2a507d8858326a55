// Package vault reads secrets from the KV secrets engine, version 2, of HashiCorp Vault and of servers with the same HTTP
// API, such as OpenBao.
package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Reference names a field of a secret.
type Reference struct {
	// Mount is the path at which the secrets engine is mounted: one segment.
	Mount string
	// Path is the path of the secret below the mount.
	Path string
	// Field is the name of a field of the secret.
	Field string
}

// ParseReference parses a reference of the form MOUNT/PATH#FIELD, such as "secret/team/github#token".
func ParseReference(text string) (Reference, error) {
	path, field, _ := strings.Cut(text, "#")
	mount, rest, _ := strings.Cut(path, "/")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || rest == "" || field == "" || strings.ContainsFunc(text, isControl) {
			return Reference{}, fmt.Errorf("%q does not name a field of a secret: write MOUNT/PATH#FIELD, such as secret/team/github#token", text)
		}
	}
	return Reference{Mount: mount, Path: rest, Field: field}, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// dataURL returns the URL of a secret, relative to the address of the server.
func (r Reference) dataURL() string {
	segments := strings.Split(r.Mount+"/data/"+r.Path, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return "/v1/" + strings.Join(segments, "/")
}

// Login gets a token of Vault with an auth method.
type Login struct {
	// Mount is the path at which the auth method is mounted, for example "approle" or "kubernetes".
	Mount string
	// Body contains the parameters of the login, for example `role_id` and `secret_id`.
	Body map[string]string
}

// Config describes a server and how to sign in there.
type Config struct {
	// Address is the URL of the server: https, or http on loopback.
	Address string
	// Namespace is the namespace of Vault Enterprise, or empty.
	Namespace string
	// CA contains PEM certificates that are trusted instead of those of the system. It may be empty.
	CA []byte
	// Token is a token of Vault. If it is empty, Login gets one.
	Token string
	// Login is used if there is no Token.
	Login Login
}

// Client reads secrets. It signs in once and reads each secret once, so that all values come from the same version of
// the secret. It is safe for concurrent use.
type Client struct {
	config Config
	http   *http.Client

	mu    sync.Mutex
	token string
	read  map[string]map[string]any // by the URL of the secret
}

// New returns a client. It opens no connection. The caller calls Close.
func New(c Config) (*Client, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: requestTimeout, MaxResponseHeaderBytes: 64 << 10}
	if len(c.CA) > 0 {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("the CA file contains no PEM certificate")
		}
	}
	return &Client{config: c, token: c.Token, read: make(map[string]map[string]any), http: &http.Client{
		Transport: transport, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this server only
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Read returns the value of a field. The error says what to do, and never contains a token or a secret.
func (c *Client) Read(ctx context.Context, ref Reference) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	fields, ok := c.read[ref.dataURL()]
	if !ok {
		var err error
		if fields, err = c.readSignedIn(ctx, ref); err != nil {
			return "", err
		}
		c.read[ref.dataURL()] = fields
	}
	value, ok := fields[ref.Field]
	if !ok {
		return "", fmt.Errorf("the secret %s/%s of Vault has no field %q", ref.Mount, ref.Path, ref.Field)
	}
	if text, isText := value.(string); isText && text != "" {
		return text, nil
	}
	return "", fmt.Errorf("the field %q of the secret %s/%s of Vault is not a text, or it is empty", ref.Field, ref.Mount, ref.Path)
}

// readSignedIn returns the fields of a secret. If Vault refuses a token of an earlier login, which may have expired, it
// signs in again.
func (c *Client) readSignedIn(ctx context.Context, ref Reference) (map[string]any, error) {
	isOld := c.token != "" && c.config.Token == ""
	if err := c.signIn(ctx); err != nil {
		return nil, err
	}
	fields, err := c.readSecret(ctx, ref)
	if refused := (*statusError)(nil); !isOld || !errors.As(err, &refused) || refused.status != http.StatusForbidden {
		return fields, err
	}
	c.token = ""
	if err := c.signIn(ctx); err != nil {
		return nil, err
	}
	return c.readSecret(ctx, ref)
}

// signIn gets a token unless the client has one.
func (c *Client) signIn(ctx context.Context) error {
	if c.token != "" {
		return nil
	}
	var got struct {
		Auth struct {
			Token string `json:"client_token"`
		} `json:"auth"`
	}
	what := "sign in at Vault with " + c.config.Login.Mount
	err := c.do(ctx, http.MethodPost, "/v1/auth/"+url.PathEscape(c.config.Login.Mount)+"/login", c.config.Login.Body, &got)
	if refused := (*statusError)(nil); errors.As(err, &refused) && refused.status < 500 {
		return fmt.Errorf("%s: %w: check the credentials and the mount in secrets.vault", what, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if c.token = got.Auth.Token; c.token == "" {
		return fmt.Errorf("%s: the response contains no token", what)
	}
	return nil
}

// readSecret returns the fields of the newest version of a secret.
func (c *Client) readSecret(ctx context.Context, ref Reference) (map[string]any, error) {
	var got secretResponse
	err := c.do(ctx, http.MethodGet, ref.dataURL(), nil, &got)
	what, refused := fmt.Sprintf("read the secret %s/%s from Vault", ref.Mount, ref.Path), (*statusError)(nil)
	switch isRefused := errors.As(err, &refused); {
	case isRefused && refused.status == http.StatusForbidden:
		return nil, fmt.Errorf("%s: %w: the token may not read %s/data/%s; change the policy of the token in Vault", what, err, ref.Mount, ref.Path)
	case isRefused && refused.status == http.StatusNotFound && refused.isDeleted():
		return nil, fmt.Errorf("%s: its newest version is deleted: write a new version, or restore it with `vault kv undelete`", what)
	case isRefused && refused.status == http.StatusNotFound:
		return nil, fmt.Errorf("%s: there is no such secret: check the path, and whether %s is a KV engine of version 2", what, ref.Mount)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case got.Data.Data == nil:
		return nil, fmt.Errorf("%s: the response contains no fields: check whether %s is a KV engine of version 2", what, ref.Mount)
	}
	return got.Data.Data, nil
}

// secretResponse is the response of the KV secrets engine, version 2. A deleted version has metadata, but no data.
type secretResponse struct {
	Data struct {
		Data     map[string]any `json:"data"`
		Metadata struct {
			DeletionTime string `json:"deletion_time"`
			Destroyed    bool   `json:"destroyed"`
		} `json:"metadata"`
	} `json:"data"`
}

const (
	// requestTimeout limits one request, and totalTimeout all requests for one secret.
	requestTimeout, totalTimeout = 10 * time.Second, 30 * time.Second
	// maxResponse is the maximum size of a response, in bytes.
	maxResponse = 1 << 20
	// attempts is how often a request is sent if the server is unavailable, or limits requests.
	attempts = 3
	// retryDelay is the delay before the second attempt. It is doubled before each further attempt.
	retryDelay = time.Second
)
