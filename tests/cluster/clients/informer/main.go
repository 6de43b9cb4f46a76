// Program informer is what client-go's users run: a shared informer, here for one ConfigMap. It prints a line for each version of it and
// one for each request that it makes, and says how long its watches lasted.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: informer KUBECONFIG NAMESPACE CONFIGMAP")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "informer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace, name string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return told{ctx, next} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.FieldSelector = one }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	tell := func(what string) func(any) {
		return func(object any) {
			if it, ok := object.(*corev1.ConfigMap); ok {
				fmt.Println(what, it.Data["letter"])
			}
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    tell("added"),
		UpdateFunc: func(_, object any) { tell("updated")(object) },
		DeleteFunc: tell("deleted"),
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// told prints what the informer asks for: client-go itself says nothing of a watch that is cut short, it begins the next.
type told struct {
	ctx  context.Context
	next http.RoundTripper
}

func (t told) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	asked, isWatch := query.Get("timeoutSeconds"), query.Has("watch")
	if !isWatch {
		fmt.Println("list")
	}
	answer, err := t.next.RoundTrip(request)
	if err != nil {
		if t.ctx.Err() == nil {
			fmt.Println("failed", err)
		}
		return nil, err
	}
	if isWatch {
		fmt.Println("watch", asked, answer.StatusCode)
		limit, _ := time.ParseDuration(asked + "s")
		answer.Body = &watched{ReadCloser: answer.Body, ctx: t.ctx, began: time.Now(), limit: limit}
	}
	return answer, nil
}

// watched is the answer to a watch.
type watched struct {
	io.ReadCloser
	ctx     context.Context
	began   time.Time
	limit   time.Duration
	isEnded bool
}

func (w *watched) Read(into []byte) (int, error) {
	n, err := w.ReadCloser.Read(into)
	if err != nil && !w.isEnded && w.ctx.Err() == nil {
		w.isEnded = true
		lasted := time.Since(w.began)
		// The API server ends it when it was asked to: a second for the way.
		if word := "ended"; err != io.EOF || lasted < w.limit-time.Second {
			word = "cut"
			fmt.Println(word, lasted.Round(time.Second), "of", w.limit, err)
		} else {
			fmt.Println(word, lasted.Round(time.Second), "of", w.limit)
		}
	}
	return n, err
}
