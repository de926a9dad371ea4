package org.apache.iceberg.rest;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.net.InetSocketAddress;
import java.util.EnumSet;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.FilterHolder;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's REST catalog, of which RESTCatalogServer would listen on every address of the machine.
 * Arguments are properties of the catalog as NAME=VALUE, "port", and "credential" as ID:SECRET: then
 * clients need a token of the server, which they get for the credential.
 */
public final class CatalogServer {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new TreeMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            properties.put(parts[0], parts[1]);
        }
        int port = Integer.parseInt(properties.remove("port"));
        String credential = properties.remove("credential");
        Catalog catalog = CatalogUtil.buildIcebergCatalog("served", properties, new Configuration());
        ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        if (credential != null) {
            context.addFilter(new FilterHolder(bearer(credential)), "/*", EnumSet.of(DispatcherType.REQUEST));
        }
        RESTCatalogServer.CatalogContext served = new RESTCatalogServer.CatalogContext(catalog, properties);
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new Adapter(served, credential))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", port));
        server.setHandler(context);
        server.start();
        server.join();
    }

    /** Refuse requests without a token, but for those that ask for one. */
    private static Filter bearer(String credential) {
        String token = "Bearer client-credentials-token:sub=" + credential.split(":", 2)[0];
        return (request, response, chain) -> {
            HttpServletRequest asked = (HttpServletRequest) request;
            if (asked.getRequestURI().endsWith("/oauth/tokens") || token.equals(asked.getHeader("Authorization"))) {
                chain.doFilter(request, response);
                return;
            }
            response.setContentType("application/json");
            ((HttpServletResponse) response).setStatus(401);
            response.getWriter().write(
                "{\"error\": {\"message\": \"no valid token\", \"type\": \"NotAuthorizedException\", \"code\": 401}}");
        };
    }

    /** The server's own routes; tokens only for the credential. */
    private static final class Adapter extends RESTServerCatalogAdapter {
        private final String credential;

        Adapter(RESTCatalogServer.CatalogContext context, String credential) {
            super(context);
            this.credential = credential;
        }

        @Override
        public <T extends RESTResponse> T handleRequest(
                Route route, Map<String, String> variables, Object body, Class<T> type) {
            if (route == Route.TOKENS && credential != null && !credential.equals(given((Map<?, ?>) body))) {
                throw new NotAuthorizedException("unknown client or wrong secret");
            }
            return super.handleRequest(route, variables, body, type);
        }

        private static String given(Map<?, ?> form) {
            return form.get("client_id") + ":" + form.get("client_secret");
        }
    }
}
