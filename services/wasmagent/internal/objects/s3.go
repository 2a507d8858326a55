package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// maxTries limits how often a request is sent if the object store can't be reached or returns a server error.
const maxTries = 3

const awsEndpoint = "https://s3.amazonaws.com"

// credentialChain gets credentials from the first of several providers that has some. If no provider has credentials,
// it returns an error, because the client would otherwise send unsigned requests. credentialChain implements
// [credentials.Provider]. Its methods are not called concurrently.
type credentialChain struct {
	providers []credentials.Provider
	// current is the provider that has returned the credentials in use, or nil if no credentials are in use.
	current credentials.Provider
}

var errNoCredentials = errors.New("there are no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role")

// Retrieve implements [credentials.Provider].
func (i *credentialChain) Retrieve() (credentials.Value, error) {
	return i.RetrieveWithCredContext(nil)
}

// RetrieveWithCredContext implements [credentials.Provider].
func (i *credentialChain) RetrieveWithCredContext(with *credentials.CredContext) (credentials.Value, error) {
	failed := errNoCredentials
	for _, provider := range i.providers {
		value, err := provider.RetrieveWithCredContext(with)
		if err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "" {
			i.current = provider
			return value, nil
		}
		failed = errors.Join(failed, err)
	}
	i.current = nil
	return credentials.Value{}, failed
}

// IsExpired implements [credentials.Provider].
func (i *credentialChain) IsExpired() bool { return i.current == nil || i.current.IsExpired() }

type bucket struct {
	client *minio.Client
	name   string
}

// OpenS3 returns the bucket with the given URL. For example, s3://agents?region=eu-central-1 is an AWS bucket, and
// s3://agents?endpoint=http://127.0.0.1:9000&use_path_style=true is a bucket in another object store. The credentials
// come from the environment (such as AWS_ACCESS_KEY_ID), from AWS's shared credentials file, from a web identity, or
// from the IAM role of the machine. OpenS3 does not connect to the object store.
func OpenS3(text string) (Bucket, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the bucket: %w", err)
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" {
		return nil, fmt.Errorf("the URL of the bucket must have the form s3://NAME?region=REGION or file:///PATH, is %s", u.Redacted())
	}
	options := u.Query()
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains([]string{"region", "endpoint", "use_path_style"}, name) {
			return nil, fmt.Errorf("the URL of the bucket has the option %q; known are region, endpoint and use_path_style", name)
		}
	}
	endpoint := options.Get("endpoint")
	if endpoint == "" {
		for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
			if os.Getenv(name) != "" { //nolint:forbidigo // the credentials come from the environment, too
				return nil, fmt.Errorf("the environment variable %s is set, but not used: unset it, and add endpoint=URL to the URL of the bucket", name)
			}
		}
		endpoint = awsEndpoint
	}
	endpointURL, err := url.Parse(endpoint)
	if err != nil || endpointURL.Host == "" || endpointURL.User != nil || endpointURL.Scheme != "http" && endpointURL.Scheme != "https" || endpointURL.Path != "" && endpointURL.Path != "/" || endpointURL.RawQuery != "" {
		return nil, errors.New("the endpoint of the bucket must have the form http://HOST:PORT or https://HOST:PORT")
	}
	style := minio.BucketLookupAuto
	if text := options.Get("use_path_style"); text != "" {
		path, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("use_path_style of the bucket must be true or false, is %q", text)
		}
		style = minio.BucketLookupDNS
		if path {
			style = minio.BucketLookupPath
		}
	}
	client, err := minio.New(endpointURL.Host, &minio.Options{
		Creds:  credentials.New(&credentialChain{providers: []credentials.Provider{new(credentials.EnvAWS), new(credentials.FileAWSCredentials), new(credentials.IAM)}}),
		Secure: endpointURL.Scheme == "https", Region: options.Get("region"), BucketLookup: style, MaxRetries: maxTries,
	})
	if err != nil {
		return nil, fmt.Errorf("the bucket %s: %w", u.Host, err)
	}
	return bucket{client, u.Host}, nil
}

// Write implements [Bucket].
func (b bucket) Write(ctx context.Context, key string, data []byte) error {
	_, err := b.client.PutObject(ctx, b.name, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true,
		// The client would otherwise send empty objects without Content-Length, which some stores require.
		DisableContentSha256: len(data) == 0,
	})
	return err
}

// Read implements [Bucket].
func (b bucket) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	data, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, key, minio.GetObjectOptions{})
	if err != nil && isMissing(err) {
		return nil, ErrNotFound
	}
	return data, err
}

// isMissing reports whether an error means that the object does not exist. It returns false if the bucket does not
// exist.
func isMissing(err error) bool {
	answer := minio.ToErrorResponse(err)
	return answer.Code == minio.NoSuchKey || answer.StatusCode == http.StatusNotFound && answer.Code != minio.NoSuchBucket
}

// Close implements [Bucket].
func (bucket) Close() error { return nil }

// List implements [Bucket].
func (b bucket) List(ctx context.Context, first string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for object := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: strings.TrimSuffix(first, "/") + "/"}) {
			if object.Err != nil {
				yield(Object{}, object.Err)
				return
			}
			if !yield(Object{object.Key, object.LastModified}, nil) {
				return
			}
		}
	}
}

// Delete implements [Bucket].
func (b bucket) Delete(ctx context.Context, key string) error {
	if err := b.client.RemoveObject(ctx, b.name, key, minio.RemoveObjectOptions{}); err != nil && !isMissing(err) {
		return err
	}
	return nil
}
