package issuerkeys

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// maxMetadata is the maximum size of an issuer's metadata, in bytes.
const maxMetadata = 256 << 10

// Metadata contains the parts of an issuer's metadata that are necessary for sign-ins (OpenID Connect Discovery 1.0,
// section 3; RFC 8414, section 2).
type Metadata struct {
	AuthorizationEndpoint string   `json:"authorization_endpoint"`
	TokenEndpoint         string   `json:"token_endpoint"`
	DeviceEndpoint        string   `json:"device_authorization_endpoint"`
	TokenAuthMethods      []string `json:"token_endpoint_auth_methods_supported"`
	SubjectTypes          []string `json:"subject_types_supported"`
	// SendsIssuer is true if authorization responses contain the parameter `iss` (RFC 9207, section 3).
	SendsIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// IsPairwise reports whether the claim `sub` of a person differs between clients (OpenID Connect Core, section 8).
func (m *Metadata) IsPairwise() bool {
	return len(m.SubjectTypes) > 0 && !slices.Contains(m.SubjectTypes, "public")
}

// UsesBasicAuth reports whether a client sends its secret to the token endpoint with HTTP Basic authentication, which
// is the default in OpenID Connect.
func (m *Metadata) UsesBasicAuth() bool {
	return len(m.TokenAuthMethods) == 0 || slices.Contains(m.TokenAuthMethods, "client_secret_basic")
}

// FetchMetadata returns the metadata of an issuer that are necessary for sign-ins. It returns an error if the URL of an
// endpoint is neither https nor http on loopback.
func FetchMetadata(ctx context.Context, from Source) (Metadata, error) {
	client, err := NewClient(from.CA)
	if err != nil {
		return Metadata{}, err
	}
	defer client.CloseIdleConnections()
	var m Metadata
	err = fetchMetadata(ctx, client, from.Issuer, func(raw []byte) error { return json.Unmarshal(raw, &m) })
	if err != nil {
		return Metadata{}, err
	}
	for name, at := range map[string]string{
		"authorization_endpoint": m.AuthorizationEndpoint, "token_endpoint": m.TokenEndpoint, "device_authorization_endpoint": m.DeviceEndpoint,
	} {
		if at == "" {
			continue
		}
		if err := CheckURL(at); err != nil {
			return Metadata{}, fmt.Errorf("the issuer's %s: %w", name, err)
		}
	}
	return m, nil
}

// metadataURLs returns the URLs of an issuer's metadata. OpenID Connect Discovery 1.0, section 4, defines the first
// URL, and RFC 8414, section 3, defines the second. In RFC 8414, the well-known path is between the host and the path
// of the issuer.
func metadataURLs(of *url.URL) []string {
	path := strings.TrimSuffix(of.Path, "/")
	root := of.Scheme + "://" + of.Host
	return []string{root + path + "/.well-known/openid-configuration", root + "/.well-known/oauth-authorization-server" + path}
}

// fetchMetadata passes the metadata of an issuer to read. If read returns an error, fetchMetadata tries the next URL.
// It returns an error if the metadata name a different issuer (RFC 8414, section 3.3).
func fetchMetadata(ctx context.Context, client *http.Client, issuerURL string, read func(raw []byte) error) error {
	of, err := url.Parse(issuerURL)
	if err != nil {
		return fmt.Errorf("the issuer is not a URL: %w", err)
	}
	var problems []error
	for _, at := range metadataURLs(of) {
		raw, err := get(ctx, client, at, maxMetadata)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		var m struct {
			Issuer string `json:"issuer"`
		}
		switch err := json.Unmarshal(raw, &m); {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: the metadata is not valid JSON: %w", at, err))
		case m.Issuer != issuerURL:
			problems = append(problems, fmt.Errorf("%s: the metadata is that of the issuer %q: write `issuer` exactly so", at, m.Issuer))
		default:
			if err = read(raw); err == nil {
				return nil
			}
			problems = append(problems, fmt.Errorf("%s: the metadata can't be used: %w", at, err))
		}
	}
	return errors.Join(problems...)
}
