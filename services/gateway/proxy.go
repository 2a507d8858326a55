package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// resolveProxy sets the proxy for an HTTP server, and adds the credentials in the proxy URL to the server's secrets. It
// returns an error for each value that cannot be resolved.
func (s *Server) resolveProxy(f *config.File, from *config.HTTPServer, refs resolver) []error {
	switch from.Proxy {
	case "":
		if proxy, err := proxyOf(s.URL, refs.env); err == nil && proxy != "" {
			s.ProxyHint = "the gateway's environment names a proxy, which is only used with http.proxy: env"
		}
		return nil
	case config.ProxyEnv:
		proxy, err := proxyOf(s.URL, refs.env)
		if err != nil {
			return []error{fmt.Errorf("proxy: %w", err)}
		}
		s.Proxy = proxy
	default:
		values, secrets, bad := refs.resolve(f, map[string]config.Secret{"proxy": from.Proxy})
		if len(bad) > 0 {
			return bad
		}
		s.Proxy, s.Secrets = values["proxy"], append(s.Secrets, secrets...)
	}
	s.Secrets = append(s.Secrets, config.URLSecrets(s.Proxy)...)
	return nil
}

// proxyOf returns the proxy that the environment sets for an address, or "" if there is none. The error contains no
// values of the environment.
func proxyOf(address string, env config.Env) (string, error) {
	u, err := url.Parse(address)
	if err != nil || env == nil {
		return "", nil //nolint:nilerr // Validate refuses the address
	}
	value := func(name string) string { return cmp.Or(lookUp(env, name), lookUp(env, strings.ToLower(name))) }
	cfg := httpproxy.Config{HTTPSProxy: value("HTTPS_PROXY"), NoProxy: value("NO_PROXY")}
	proxy, err := cfg.ProxyFunc()(u)
	if err != nil {
		return "", errors.New("HTTPS_PROXY is not the address of a proxy such as http://proxy.example.com:3128")
	}
	if proxy == nil || u.Scheme != "https" {
		return "", nil
	}
	return proxy.String(), nil
}
